"""Much output, odd output, output of children: nothing is lost, nothing gets stuck."""

import contextlib
import io
import os
import sys
import time

import pytest

from nbaccel import notebook_launcher


@contextlib.contextmanager
def captured():
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        yield out, err


def launch(function, n=2, **options):
    """What two ranks' function leaves in the two streams, our own line left out."""
    with captured() as (out, err):
        notebook_launcher(function, num_processes=n, cpu=True, **options)
    return out.getvalue().partition("\n")[2], err.getvalue()


def of_rank(rank, text):
    label = f"[rank {rank}] "
    return [line.removeprefix(label) for line in text.splitlines() if line.startswith(label)]


@pytest.mark.parametrize("n", [1, 2])
def test_a_line_of_50_mb(n):
    def work():
        sys.stdout.write("x" * 50_000_000 + "\n")

    out, _ = launch(work, n)
    assert sorted(len(line) for line in out.splitlines()) == [50_000_000 + (n > 1) * len("[rank 0] ")] * n


def test_both_streams_full_at_once():
    def work():
        for i in range(20_000):
            print("out", i)
            print("err", i, file=sys.stderr)

    out, err = launch(work)
    for rank in (0, 1):
        assert of_rank(rank, out) == [f"out {i}" for i in range(20_000)]
        assert of_rank(rank, err) == [f"err {i}" for i in range(20_000)]


def test_binary_garbage_and_split_characters():
    def work():
        for size in range(1, 60):
            os.write(1, "ä∑🎉".encode()[:size] * size)
            os.write(1, b"\0\xff\x1b[" + bytes(range(256)))
        os.write(1, b"\nfine\n")

    out, _ = launch(work)
    for rank in (0, 1):
        assert of_rank(rank, out.replace("\r", ""))[-1] == "fine"
    assert "ä∑🎉" in out


def test_lines_of_data_loader_children_come_whole():
    def work():
        import multiprocessing

        def child(number):
            for i in range(2000):
                print("child", number, i)

        children = [multiprocessing.get_context("fork").Process(target=child, args=(k,)) for k in range(3)]
        for process in children:
            process.start()
        for process in children:
            process.join()

    out, _ = launch(work)
    expected = sorted(f"child {number} {i}" for number in range(3) for i in range(2000))
    for rank in (0, 1):
        assert sorted(of_rank(rank, out)) == expected


def test_lines_of_threads_come_whole_while_unfinished_ones_are_sent_on():
    def work():
        import threading

        def write(number):
            for i in range(2000):
                sys.stdout.write(f"thread {number} {i}\n")

        threads = [threading.Thread(target=write, args=(number,)) for number in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        sys.stdout.write("unfinished")

    out, _ = launch(work)
    expected = sorted([f"thread {number} {i}" for number in range(4) for i in range(2000)] + ["unfinished"])
    assert sorted(of_rank(0, out)) == expected


def test_a_fork_while_unfinished_lines_are_on_their_way_gets_no_taken_lock():
    def work():
        import multiprocessing

        def child():
            sys.stdout.write("c")
            print("hild")

        context = multiprocessing.get_context("fork")
        for _ in range(30):
            sys.stdout.write("p")  # wakes the thread that sends unfinished lines on
            process = context.Process(target=child)
            process.start()
            process.join(20)
            if process.exitcode != 0:
                process.kill()
                raise RuntimeError("a child was stuck")
        print()

    out, _ = launch(work)
    assert out.count("child\n") >= 60


def test_what_user_code_redirects_has_no_marks_in_it(tmp_path):
    def work():
        with open(tmp_path / f"file-{os.environ['RANK']}", "wb") as file:
            saved = os.dup(1)
            os.dup2(file.fileno(), 1)
            for i in range(5):
                print("to file", i)
                print("to stderr", i, file=sys.stderr)
            os.dup2(saved, 1)
        print("behind")

    out, err = launch(work)
    for rank in (0, 1):
        assert (tmp_path / f"file-{rank}").read_text() == "".join(f"to file {i}\n" for i in range(5))
        assert of_rank(rank, out) == ["behind"]
        assert len(of_rank(rank, err)) == 5


def test_a_stopped_reader_makes_workers_wait_and_loses_nothing():
    class Slow(io.StringIO):
        """A stream as slow as a front end far away."""

        def write(self, text):
            time.sleep(0.02)
            return super().write(text)

    def work():
        for i in range(30_000):
            print("x" * 100, i)

    target = Slow()
    with contextlib.redirect_stdout(target):
        notebook_launcher(work, num_processes=2, cpu=True)
    for rank in (0, 1):
        assert of_rank(rank, target.getvalue()) == [f"{'x' * 100} {i}" for i in range(30_000)]


def test_output_of_a_hidden_rank_is_read_all_the_same():
    def work():
        for _ in range(100_000):
            print("y" * 100)

    out, err = launch(work, output="none")
    assert (out, err) == ("", "")


def test_exit_handlers_and_c_buffers_still_reach_the_cell():
    def work():
        import atexit
        import ctypes

        atexit.register(print, "at exit")
        ctypes.CDLL(None).printf(b"c text without end")

    out, _ = launch(work, n=1)
    assert "at exit" in out
    assert "c text without end" in out
