"""Tensors of every kind arrive as they were, their memory out of band and shared as before."""

from __future__ import annotations

import copy
import gc
import warnings

import hypothesis.strategies as st
import pytest
import torch
from hypothesis import given, settings

from nbaccel.launch.payload import payload, pickling, tensors

DTYPES = sorted(
    {value for value in vars(torch).values() if isinstance(value, torch.dtype)} - {torch.bits1x8}, key=str
)
QUANTISED = {torch.qint8, torch.quint8, torch.qint32, torch.quint4x2, torch.quint2x4}


def there(obj):
    """What a worker gets of an object, and how many bytes travelled."""
    with payload.dump_call((len, (obj,), {})) as packed:
        _, (arrived,), _ = packed.load()
        return arrived, packed.contents.written


def through(obj):
    return there(obj)[0]


def home(obj):
    with payload.dump_result(obj) as packed:
        return packed.load()


def bits(tensor):
    return tensor.contiguous().flatten().view(torch.uint8)


@pytest.mark.filterwarnings("ignore:ComplexHalf:UserWarning", "ignore:BComplex32:UserWarning")
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_each_dtype_keeps_its_bits(dtype):
    if dtype in QUANTISED or str(dtype).removeprefix("torch.").startswith(("bits", "int1", "int2")):
        pytest.skip("has no plain tensors")
    raw = torch.arange(1, 129, dtype=torch.uint8)
    if dtype is torch.bool:
        raw = raw % 2
    try:
        tensor = raw.view(dtype)
    except (TypeError, RuntimeError) as error:
        pytest.skip(f"no plain tensors: {error}")
    for way in (through, home):
        arrived = way(tensor)
        assert arrived.dtype is dtype
        assert torch.equal(arrived.view(torch.uint8), raw)


@given(
    shape=st.lists(st.integers(0, 5), max_size=4),
    order=st.randoms(use_true_random=False),
    start=st.integers(0, 3),
    step=st.integers(1, 3),
)
@settings(max_examples=60, deadline=None)
def test_strided_views_arrive_equal_and_alias_their_base(shape, order, start, step):
    base = torch.randn(shape)
    dims = list(range(base.dim()))
    order.shuffle(dims)
    view = base.permute(dims)
    if view.dim() and view.shape[0]:
        view = view[min(start, view.shape[0] - 1) :: step]
    arrived_base, arrived_view = through([base, view])
    assert torch.equal(arrived_view, view)
    assert arrived_view.stride() == view.stride()
    if view.numel():
        arrived_base.fill_(7)
        assert torch.equal(arrived_view, torch.full(view.shape, 7.0))


def test_scalars_empty_and_expanded_tensors():
    scalar, empty, wide = torch.tensor(3.5), torch.empty(0, 4), torch.ones(1, 1).expand(100, 100)
    (scalar2, empty2, wide2), size = there([scalar, empty, wide])
    assert scalar2.shape == ()
    assert scalar2.item() == 3.5
    assert empty2.shape == (0, 4)
    assert wide2.stride() == (0, 0)
    assert torch.equal(wide2, wide)
    assert size < 10_000


def test_an_empty_view_far_into_a_storage():
    table = torch.arange(1000)
    few, nothing = through([table[:2], table[900:900]])
    assert few.tolist() == [0, 1]
    assert nothing.numel() == 0


def test_of_a_large_storage_only_what_is_used_travels():
    table = torch.arange(1_000_000)
    (part, other), size = there([table[500_000:500_010], table[500_100:500_103]])
    assert part.tolist() == list(range(500_000, 500_010))
    assert other.tolist() == [500_100, 500_101, 500_102]
    assert part.untyped_storage().data_ptr() == other.untyped_storage().data_ptr()
    assert size < 10_000


def test_memory_is_aligned_as_vector_units_like_it():
    for tensor in through([torch.ones(3), torch.ones(5, dtype=torch.uint8), torch.ones(7)]):
        assert tensor.data_ptr() % 64 == 0


def test_what_arrived_is_writable_and_private():
    with payload.dump_call((len, (torch.zeros(5000),), {})) as packed:
        one, two = (packed.load()[1][0] for _ in range(2))
    one.fill_(1)
    assert two.sum().item() == 0


def test_a_loaded_tensor_outlives_its_payload():
    arrived = through(torch.arange(1000))
    gc.collect()
    assert arrived.sum().item() == 499_500


def test_tensors_from_one_array_share_it():
    array = torch.zeros(4).numpy()
    one, two = through([torch.from_numpy(array), torch.from_numpy(array)[1:]])
    one.fill_(3)
    assert two.tolist() == [3, 3, 3]


def test_views_of_another_dtype_share_memory():
    whole = torch.zeros(8, dtype=torch.int32)
    whole2, as_bytes = through([whole, whole.view(torch.uint8)])
    as_bytes.fill_(1)
    assert whole2.tolist() == [0x01010101] * 8


def test_requires_grad_and_leafs():
    leaf = torch.ones(3, requires_grad=True)
    result = leaf * 2
    leaf2, result2 = through([leaf, result])
    assert leaf2.requires_grad
    assert leaf2.is_leaf
    assert result2.requires_grad
    assert result2.is_leaf  # the graph stays behind
    assert torch.equal(result2, result)


def test_conjugates_and_negatives():
    number = torch.tensor([1 + 2j, 3 - 4j])
    plain, conj, neg = through([number, number.conj(), number.conj().imag])
    assert conj.is_conj()
    assert torch.equal(conj, number.conj())
    assert torch.equal(neg, number.conj().imag)
    plain.fill_(1j)
    assert conj.tolist() == [-1j, -1j]


@pytest.mark.parametrize("layout", ["coo", "csr", "csc", "bsr"])
def test_sparse_tensors_go_out_of_band_and_share_values(layout):
    dense = torch.zeros(400, 400)
    dense[::2, ::4] = torch.randn(200, 100)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # torch calls these layouts beta
        sparse = {
            "coo": dense.to_sparse,
            "csr": dense.to_sparse_csr,
            "csc": dense.to_sparse_csc,
            "bsr": lambda: dense.to_sparse_bsr((2, 2)),
        }[layout]()
        values = sparse._values() if layout == "coo" else sparse.values()
        (arrived, values2), size = there([sparse, values])
        assert arrived.layout is sparse.layout
        assert torch.equal(arrived.to_dense(), dense)
        inner = arrived._values() if layout == "coo" else arrived.values()
    assert inner.data_ptr() == values2.data_ptr()
    assert size < 2 * (values.nbytes + 2 * 8 * values.numel()) + 20_000


def test_quantised_tensors():
    whole = torch.quantize_per_tensor(torch.randn(100, 100), 0.1, 10, torch.quint8)
    channels = torch.quantize_per_channel(
        torch.randn(3, 4), torch.tensor([0.1, 0.2, 0.3]), torch.zeros(3, dtype=torch.int64), 0, torch.qint8
    )
    (whole2, view2, channels2), _ = there([whole, whole[1:3], channels])
    assert torch.equal(whole2.int_repr(), whole.int_repr())
    assert whole2.q_scale() == whole.q_scale()
    assert torch.equal(view2.int_repr(), whole[1:3].int_repr())
    assert torch.equal(channels2.dequantize(), channels.dequantize())
    assert view2.data_ptr() == whole2.data_ptr() + 100


def test_meta_tensors_take_no_memory():
    meta, size = there(torch.empty(1 << 20, 1 << 10, device="meta", dtype=torch.bfloat16))
    assert meta.device.type == "meta"
    assert meta.shape == (1 << 20, 1 << 10)
    assert meta.dtype is torch.bfloat16
    assert size < 10_000


@pytest.mark.parametrize("layout", [torch.strided, torch.jagged], ids=str)
@pytest.mark.filterwarnings("ignore:.*nested tensors.*:UserWarning")
def test_nested_tensors(layout):
    parts = [torch.randn(2, 3), torch.randn(4, 3)]
    arrived = through(torch.nested.nested_tensor(parts, layout=layout))
    assert all(torch.equal(a, b) for a, b in zip(arrived.unbind(), parts, strict=True))


def test_storages_as_such():
    tensor = torch.arange(10)
    tensor2, untyped, typed = through([tensor[2:4], tensor.untyped_storage(), tensor.storage()])
    assert untyped.nbytes() == 80
    assert typed.tolist() == list(range(10))
    untyped.fill_(0)
    assert tensor2.tolist() == [0, 0]


def test_tied_weights_and_modules():
    class Tied(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.embed = torch.nn.Embedding(10, 4)
            self.out = torch.nn.Linear(4, 10, bias=False)
            self.out.weight = self.embed.weight
            self.register_buffer("mask", torch.ones(4))
            self.register_buffer("scratch", torch.zeros(2), persistent=False)

        def forward(self, x):
            return self.out(self.embed(x) * self.mask)

    model = Tied().eval()
    model.embed.weight.requires_grad_(False)
    for way in (through, home):
        arrived = way(model)
        assert arrived.out.weight is arrived.embed.weight
        assert not arrived.out.weight.requires_grad
        assert not arrived.training
        assert list(arrived.state_dict()) == list(model.state_dict())
        assert torch.equal(arrived(torch.arange(3)), model(torch.arange(3)))


def test_parameters_that_share_a_storage_share_it_there():
    flat = torch.zeros(6)
    a, b = through([torch.nn.Parameter(flat[:3]), torch.nn.Parameter(flat[1:4])])
    with torch.no_grad():
        a.fill_(2)
    assert b.tolist() == [2, 2, 0]
    assert isinstance(a, torch.nn.Parameter)


def test_optimizers_stay_tied_to_their_model():
    model = torch.nn.Linear(3, 1)
    optimizer = torch.optim.Adam(model.parameters())
    model(torch.ones(3)).sum().backward()
    optimizer.step()
    model2, optimizer2 = through([model, optimizer])
    before = copy.deepcopy(model2.state_dict())
    optimizer2.zero_grad()
    model2(torch.ones(3)).sum().backward()
    optimizer2.step()
    assert not torch.equal(before["weight"], model2.weight)
    assert torch.equal(before["weight"], model.weight)


def test_attributes_travel_and_may_lead_back():
    tensor = torch.ones(2)
    tensor.note, tensor.me = "hello", tensor
    parameter = torch.nn.Parameter(torch.ones(1))
    parameter.spec = ("a", 1)
    tensor2, parameter2 = through([tensor, parameter])
    assert tensor2.note == "hello"
    assert tensor2.me is tensor2
    assert parameter2.spec == ("a", 1)


def test_hooks_travel():
    leaf = torch.ones(2, requires_grad=True)
    leaf.register_hook(lambda grad: grad * 10)
    seen = []
    weight = torch.nn.Parameter(torch.ones(1))
    weight.register_post_accumulate_grad_hook(lambda p: seen.append(p.grad.item()))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        leaf2, weight2, seen2 = through([leaf, weight, seen])
    (leaf2.sum() + weight2.sum()).backward()
    assert leaf2.grad.tolist() == [10, 10]
    assert seen2 == [1.0]
    assert seen == []


class Labelled(torch.Tensor):
    """A subclass with an attribute."""


def test_subclasses_keep_class_attributes_and_memory():
    base = torch.arange(6.0)
    labelled = base.as_subclass(Labelled)
    labelled.label = "x"
    base2, labelled2 = through([base, labelled])
    assert type(labelled2) is Labelled
    assert labelled2.label == "x"
    base2.fill_(4)
    assert labelled2.sum().item() == 24


class _Elsewhere:
    """A storage of an accelerator that isn't there: its bytes can only be copied."""

    def __init__(self, tensor):
        self.device = torch.device("cuda:1")
        self.content = tensor


def test_accelerator_memory_is_copied_once_and_lands_on_the_readers_device(monkeypatch):
    source = torch.arange(100, dtype=torch.uint8)
    copies = []

    def bytes_of(storage):
        copies.append(storage)
        return storage.content

    monkeypatch.setattr(tensors, "_bytes_of", bytes_of)
    monkeypatch.setattr(_Elsewhere, "data_ptr", lambda self: self.content.data_ptr(), raising=False)
    landed_on = []
    monkeypatch.setattr(tensors, "_present", lambda device: landed_on.append(device) or "cpu")
    for to_cpu, expected in ((False, "cuda"), (True, "cpu")):
        reducers = tensors.TensorReducers(to_cpu=to_cpu)
        buffer = reducers._buffer_of(_Elsewhere(source))
        buffer.use(70, 80)
        with buffer.memory() as raw:
            stream = buffer.preamble() + bytes(raw)
        land, (_, home_device) = buffer.__reduce__()
        landed = land(bytearray(stream), home_device)
        assert landed_on.pop() == expected
        assert landed.low == 64
        assert bytes(landed.storage) == bytes(range(64, 80))
    assert len(copies) == 2


def test_a_device_that_the_reader_lacks_means_the_cpu():
    assert tensors._present("cuda" if not torch.cuda.is_available() else "xpu") == "cpu"
    assert tensors._present("no_such_device") == "cpu"


def test_results_ask_for_the_cpu():
    assert pickling.ResultPickler.to_cpu
    assert not pickling.CallPickler.to_cpu
