"""What a notebook defines works in workers, comes home as the kernel's own, and leaves the kernel alone.

Cells run in a real kernel; the asserts stand in the cells and fail the test through the cell's error.
"""

from __future__ import annotations

import pytest

SETUP = """
import enum, functools, inspect, abc, dataclasses, typing, collections, pickle, io, os, sys
import torch
from torch.utils.data import DataLoader, Dataset
from nbaccel import notebook_launcher

def launch(fn, *args, n=2, **more):
    return notebook_launcher(fn, args, n, cpu=True, returns="all", output="none", **more)
"""


@pytest.fixture
def cell(kernel):
    """Run cells one after the other; each must pass."""
    kernel.run(SETUP)
    return kernel.run


def test_B032_functions_lambdas_closures_and_classes(cell):
    cell("k = 3\nclass C:\n    v = 4")
    cell("def helper(x):\n    return x * k")
    cell("assert launch(lambda: helper(C.v)) == [12, 12]")
    cell("def outer(n):\n    def inner(x):\n        return x + n\n    return inner\n")
    cell("assert launch(outer(5), 1) == [6, 6]")


def test_B035_instances_and_enum_members_come_home_as_the_kernels_own(cell):
    cell(
        """
class Point:
    made = 0
    def __init__(self, x): self.x = x
class Color(enum.Enum):
    RED = 1
    BLUE = 2
class Level(enum.IntFlag):
    LOW = 1
    HIGH = 2
def work():
    Point.made += 1
    return Point(Point.made), Color.BLUE, Level.LOW | Level.HIGH
"""
    )
    cell(
        """
for point, color, level in launch(work):
    assert isinstance(point, Point) and type(point) is Point and point.x == 1
    assert color is Color.BLUE
    assert level is Level.LOW | Level.HIGH
assert Point.made == 0, "a class of the kernel was written to"
"""
    )


def test_B035_a_class_redefined_between_launch_and_return(cell):
    """By the one thread that can do it: another one of the kernel."""
    cell("import threading, time\nclass P:\n    version = 1\n    x = 5")
    cell("old = P")
    cell(
        """
def work(path):
    while not os.path.exists(path):
        time.sleep(0.01)
    return P()
def redefine():
    exec("class P:\\n    version = 2", globals())
    del globals()["old"]
    open("go", "w").close()
thread = threading.Timer(0.3, redefine)
thread.start()
results = launch(work, os.path.abspath("go"))
thread.join()
assert [r.version for r in results] == [1, 1] and [r.x for r in results] == [5, 5]
assert P.version == 2
"""
    )


def test_B036_changes_to_globals_stay_in_the_worker(cell):
    cell("D = {}\nn = 1")
    cell("assert launch(lambda: D.setdefault('x', 1)) == [1, 1]\nassert D == {}")
    cell(
        """
def bump():
    global n
    n += 1
    return n, bump
assert [value for value, _ in launch(bump)] == [2, 2] and n == 1
copy = launch(bump)[0][1]
copy()  # it came home with globals of its own
assert n == 1
"""
    )


def test_B037_only_names_in_use_are_sent(cell):
    cell("big = torch.zeros(5_000_000)\nfrom nbaccel.launch.payload import payload")
    cell("def small():\n    return 1\ndef large():\n    return big.sum().item()")
    cell(
        """
with payload.dump_call((small, (), {})) as p: assert p.contents.written < 10_000
with payload.dump_call((large, (), {})) as p: assert p.contents.written > 20_000_000
"""
    )
    result = cell("assert launch(large) == [0.0, 0.0]")
    assert "go to the workers" not in result.stderr
    cell("os.environ['NBACCEL_CAPTURE_WARN_MB'] = '10'")
    result = cell("assert launch(large) == [0.0, 0.0]")
    cell("del os.environ['NBACCEL_CAPTURE_WARN_MB']")
    assert "nbaccel: 19 MB go to the workers with the function; largest: 'big' 19 MB" in result.stderr
    assert result.stderr.count("go to the workers") == 1


def test_B038_modules_by_the_kernels_path_and_folder(cell):
    cell(
        """
os.makedirs("lib", exist_ok=True)
open("lib/nbt_mymod.py", "w").write("def f():\\n    return 'found'\\n")
sys.path.insert(0, os.path.abspath("lib"))
import nbt_mymod
assert launch(nbt_mymod.f) == ["found"] * 2
sys.path.pop(0)
here = os.getcwd()
os.chdir("lib")
open("data.txt", "w").write("relative")
assert launch(lambda: open("data.txt").read()) == ["relative"] * 2
os.chdir(here)
"""
    )


def test_B039_an_attribute_set_on_a_module_is_not_sent(cell):
    """The documented limit: modules go by name, so what was patched into them here isn't there."""
    cell("import json\njson.patched = 1\nassert launch(lambda: hasattr(json, 'patched')) == [False, False]")
    cell("del json.patched")


def test_B040_a_prepared_model_can_be_sent_and_comes_home(cell):
    cell(
        """
from nbaccel import Accelerator
def train(model):
    acc = Accelerator(cpu=True, mixed_precision="bf16")
    prepared = acc.prepare(model)
    prepared(torch.ones(1, 2))
    return prepared
model = torch.nn.Linear(2, 2)
for back in launch(train, model):
    assert type(back) is torch.nn.Linear, type(back)
    assert torch.equal(back.weight, model.weight)
"""
    )


def test_B021_a_loader_made_outside(cell):
    cell(
        """
from nbaccel import Accelerator
dl = DataLoader(range(8), 2)
def train():
    acc = Accelerator(cpu=True)
    return [b.tolist() for b in acc.prepare(dl)]
assert launch(train) == [[[0, 1], [4, 5]], [[2, 3], [6, 7]]]
shuffled = DataLoader(range(8), 2, shuffle=True, generator=torch.Generator().manual_seed(3))
a, b = launch(lambda: [x.tolist() for x in shuffled])
assert a == b
alive = DataLoader(range(4), 2, num_workers=1, persistent_workers=True, collate_fn=list)
list(alive)
assert launch(lambda: list(alive)) == [[[0, 1], [2, 3]]] * 2
del alive
"""
    )


CLASSES = """
T = typing.TypeVar("T")
@dataclasses.dataclass
class Config:
    lr: float = 0.1
    tags: list = dataclasses.field(default_factory=list)
@dataclasses.dataclass(frozen=True, slots=True)
class Frozen:
    a: int
Pair = collections.namedtuple("Pair", "a b")
class Typed(typing.NamedTuple):
    x: int
    y: str = "d"
class Base(abc.ABC):
    @abc.abstractmethod
    def go(self): ...
class Impl(Base):
    def go(self): super().__init__(); return __class__.__name__
class Box(typing.Generic[T]):
    def __init__(self, v: T): self.v = v
class Meta(type):
    def __call__(cls, *a): return super().__call__(*a)
    @property
    def kind(cls): return "meta-" + cls.__name__
class WithMeta(metaclass=Meta):
    pass
class Outer:
    class Inner:
        z = 3
    @classmethod
    def make(cls): return cls()
    @staticmethod
    def add(a, b): return a + b
    @property
    def p(self): return "prop"
    @functools.cached_property
    def slow(self): return "cached"
    @functools.lru_cache(maxsize=None)
    def memo(self, n): return n * 2
    def __init_subclass__(cls, **kw): super().__init_subclass__(**kw)
class Slots:
    __slots__ = ("a", "b", "__secret")
    def __init__(self): self.a, self.b, self.__secret = 1, 2, 3
    def secret(self): return self.__secret
class MoreSlots(Slots):
    __slots__ = "c"
    def __init__(self): super().__init__(); self.c = 4
class Oops(Exception):
    def __init__(self, code, why): super().__init__(f"{code} {why}"); self.code = code
"""


def test_classes_of_every_make(cell):
    cell(CLASSES)
    cell(
        """
def local():
    class Local:
        v = 9
    return Local
L = local()
def work():
    outer = Outer()
    assert isinstance(Impl(), Base) and Impl().go() == "Impl"
    assert WithMeta.kind == "meta-WithMeta" and WithMeta().__class__.__class__ is Meta
    assert Outer.Inner.z == 3 and Outer.add(1, 2) == 3 and outer.p == "prop" and outer.slow == "cached"
    assert outer.memo(4) == 8 and isinstance(Outer.make(), Outer)
    try:
        Base()
    except TypeError:
        pass
    else:
        raise AssertionError("an abstract class could be made")
    assert Box[int](4).v == 4
    assert dataclasses.asdict(Config(tags=[1])) == {"lr": 0.1, "tags": [1]}
    inner = Outer.Inner()
    plain = Config(0.5), Frozen(3), Pair(1, 2), Typed(1), Box("b"), inner, L()
    return *plain, MoreSlots(), Impl(), WithMeta(), Oops(3, "x")
for c, f, p, t, b, i, l, s, im, wm, oops in launch(work):
    assert type(c) is Config and c == Config(0.5)
    assert type(f) is Frozen and f == Frozen(3)
    assert type(p) is Pair and p == (1, 2)
    assert type(t) is Typed and t.y == "d"
    assert type(b) is Box and type(i) is Outer.Inner and type(l) is L
    assert type(s) is MoreSlots and (s.a, s.b, s.c, s.secret()) == (1, 2, 4, 3)
    assert isinstance(im, Base) and type(wm) is WithMeta
    assert type(oops) is Oops and oops.code == 3 and str(oops) == "3 x"
"""
    )


def test_functions_of_every_make(cell):
    cell(
        """
def logged(fn):
    @functools.wraps(fn)
    def wrapper(*a, **k):
        return ["log", fn(*a, **k)]
    return wrapper
@logged
def decorated(x): return x + 1
@functools.lru_cache(maxsize=7)
def fib(n): return n if n < 2 else fib(n - 1) + fib(n - 2)
fib.note = "kept"
def fact(n): return 1 if n == 0 else n * fact(n - 1)
def even(n): return True if n == 0 else odd(n - 1)
def odd(n): return False if n == 0 else even(n - 1)
def defaults(a, b=[1], *, c={"k": 2}): return a, b, c
@functools.singledispatch
def describe(x): return "any"
@describe.register
def _(x: int): return "int"
add = functools.partial(lambda a, b: a + b, 10)
table = {"f": lambda x: x * 2, "g": [lambda x: x * 3]}
def gen(): yield from range(3)
async def later(): return 7
def work():
    import asyncio
    return (decorated(1), decorated.__name__, fib(30), fib.cache_parameters()["maxsize"], fib.note,
            fact(5), even(10), defaults(0), describe(1), describe("s"), add(1), table["f"](2),
            table["g"][0](2), list(gen()), asyncio.run(later()))
expected = (["log", 2], "decorated", 832040, 7, "kept",
            120, True, (0, [1], {"k": 2}), "int", "any", 11, 4,
            6, [0, 1, 2], 7)
for told in launch(work):
    assert told == expected, told
"""
    )


def test_pickle_torch_save_and_data_workers_find_notebook_names(cell):
    cell(
        """
class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(1, 1)
    def forward(self, x): return self.layer(x)
class Squares(Dataset):
    def __len__(self): return 8
    def __getitem__(self, i): return Item(i)
@dataclasses.dataclass
class Item:
    i: int
def collate(items): return torch.tensor([item.i ** 2 for item in items])
def work(fn):
    net, file = Net(), io.BytesIO()
    torch.save(net, file)
    file.seek(0)
    assert type(torch.load(file, weights_only=False)) is Net
    assert pickle.loads(pickle.dumps(fn)) is fn and fn.__module__ == "__main__"
    assert pickle.loads(pickle.dumps(Item(3))) == Item(3)
    import __main__
    assert __main__.Net is Net and __main__.collate is collate
    squares = [b.tolist() for b in DataLoader(Squares(), 4, num_workers=2, collate_fn=fn)]
    return squares, file.getvalue()
for squares, saved in launch(work, collate):
    assert squares == [[0, 1, 4, 9], [16, 25, 36, 49]]
    assert type(torch.load(io.BytesIO(saved), weights_only=False)) is Net
"""
    )


def test_a_name_that_means_something_else_by_now_is_not_put_into_main(cell):
    cell("def f():\n    return 'old'\nclass K:\n    v = 'old'\nkept, kept_class = f, K")
    cell("def f():\n    return 'new'\nclass K:\n    v = 'new'")
    cell("assert launch(lambda: (kept(), f(), kept_class.v, K.v)) == [('old', 'new', 'old', 'new')] * 2")
    cell("assert launch(lambda: (f(), kept(), K.v, kept_class.v)) == [('new', 'old', 'new', 'old')] * 2")


def test_source_of_cells_is_there(cell):
    cell("def shown(x):\n    # a comment of the cell\n    return x\n")
    cell(
        """
class Shown(torch.nn.Module):
    # the class's comment
    def forward(self, x):
        return torch.relu(x) + 1
"""
    )
    cell(
        """
def work():
    function, cls = inspect.getsource(shown), inspect.getsource(Shown)
    scripted = torch.jit.script(Shown())
    return function, cls, scripted(torch.zeros(1)).item()
for function, cls, value in launch(work):
    assert function == "def shown(x):\\n    # a comment of the cell\\n    return x\\n"
    assert cls.startswith("class Shown(torch.nn.Module):\\n    # the class's comment")
    assert value == 1.0
"""
    )


def test_scripted_modules_and_compiled_ones(cell):
    cell(
        """
scripted = torch.jit.script(torch.nn.Linear(2, 1))
compiled = torch.compile(torch.nn.Linear(2, 1), backend="eager")
x = torch.ones(2)
for value in launch(lambda: (scripted(x), compiled(x))):
    assert torch.allclose(value[0], scripted(x))
    assert torch.allclose(value[1], compiled(x))
""",
    )


def test_a_notebooks_own_names_can_be_used(cell):
    """`exit`, `get_ipython`, `display` and the streams hold the kernel's shell and sockets."""
    cell("out = sys.stdout")
    cell(
        """
def work(early):
    out.write("to the worker's own stream\\n")
    assert out is sys.stdout
    assert get_ipython() is None or hasattr(get_ipython(), "display_pub")
    if early:
        exit(0)
    return "late"
assert launch(work, False) == ["late", "late"]
assert launch(work, True) == [None, None]
"""
    )


def test_B184_values_come_home(cell):
    cell(
        """
def work():
    rank = int(os.environ["RANK"])
    return rank, {"loss": torch.tensor(1.0 + rank, requires_grad=True)}
told = [(rank, v["loss"].item(), v["loss"].device.type) for rank, v in launch(work)]
assert told == [(0, 1.0, "cpu"), (1, 2.0, "cpu")]
"""
    )
