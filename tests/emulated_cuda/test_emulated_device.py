"""The emulated device alone: it computes as the CPU, and refuses, waits and counts as CUDA does."""

import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F

import emulated_cuda

pytestmark = [pytest.mark.gpu, pytest.mark.emulated_gpu]
ROOT = Path(__file__).resolve().parents[2]
of_other_processes = pytest.mark.matrix(3, of="emulated devices of other processes")


def in_a_new_process(code: str, *options: str) -> subprocess.CompletedProcess[str]:
    return python(f"import emulated_cuda; emulated_cuda.install(); import torch\n{code}", *options)


def python(code: str, *options: str) -> subprocess.CompletedProcess[str]:
    """Run the code in a new process, which has no devices yet."""
    env = {name: value for name, value in os.environ.items() if name != "EMULATED_CUDA"}
    command = [sys.executable, *options, "-c", code]
    return subprocess.run(command, capture_output=True, text=True, cwd=ROOT, check=False, env=env)


@pytest.fixture(autouse=True)
def nothing_is_pending():
    yield
    torch.cuda.synchronize()
    assert torch.cuda.current_device() == 0


# ---------------------------------------------------------------------------------------------------- planted faults


@of_other_processes
def test_the_host_cannot_read_the_memory():
    """A raw pointer's read ends the process."""
    done = in_a_new_process(
        "import ctypes; x = torch.ones(3, device='cuda'); ctypes.string_at(x.data_ptr(), 4); print('read')"
    )
    assert done.returncode == -signal.SIGSEGV and "read" not in done.stdout


def x(*size, device="cuda"):
    return torch.arange(1.0, 1 + torch.Size(size).numel()).reshape(size).to(device)


FAULTS = {
    "numpy": lambda: x(3).numpy(),
    "host ids into an embedding": lambda: F.embedding(torch.tensor([0]), x(2, 3)),
    "one host id into an embedding": lambda: F.embedding(torch.tensor(0), x(2, 3)),
    "device ids into a host embedding": lambda: F.embedding(torch.tensor([0]).cuda(), x(2, 3, device="cpu")),
    "add": lambda: x(3) + torch.ones(3),
    "add into the host": lambda: torch.ones(3).add_(x(3)),
    "add into a host number": lambda: torch.tensor(1.0).add_(x(3).sum()),
    "cat": lambda: torch.cat([x(3), torch.ones(3)]),
    "where": lambda: torch.where(torch.tensor([True, False, True]), x(3), x(3)),
    "mask": lambda: x(3).masked_fill(torch.tensor([True, False, True]), 0.0),
    "matrix": lambda: x(2, 3) @ torch.ones(3, 2),
    "gather": lambda: x(2, 3).gather(1, torch.zeros(2, 1, dtype=torch.long)),
    "index_select": lambda: x(2, 3).index_select(0, torch.zeros(2, dtype=torch.long)),
    "loss": lambda: F.cross_entropy(x(2, 3), torch.zeros(2, dtype=torch.long)),
    "two devices": lambda: x(3) + x(3, device="cuda:1"),
    "two devices in a list": lambda: torch.stack([x(3), x(3, device="cuda:1")]),
    "a device that is not there": lambda: torch.ones(3, device="cuda:2"),
    "a generator of the host": lambda: torch.rand(3, device="cuda", generator=torch.Generator()),
    "product of integers": lambda: x(2, 2).long() @ x(2, 2).long(),
    "lists": lambda: torch._foreach_add([x(3)], [torch.ones(3)]),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_mixed_devices_are_refused(fault):
    with pytest.raises((RuntimeError, TypeError)):
        FAULTS[fault]()


def test_what_cuda_takes_from_the_host():
    """Numbers without a dimension, and indices, which are copied."""
    a = x(3)
    assert (a + torch.tensor(1.0)).tolist() == [2, 3, 4]
    assert torch.where(a > 1, a, torch.tensor(0.0)).tolist() == [0, 2, 3]
    with emulated_cuda.counted() as counts:
        chosen = a[torch.tensor([2, 0])], a[torch.tensor([True, False, True])]
    assert [t.tolist() for t in chosen] == [[3, 1], [1, 3]]
    assert counts.copies == 2


def test_generators_of_the_device():
    assert torch.rand(3, device="cuda", generator=torch.Generator("cuda").manual_seed(1)).is_cuda
    assert torch.rand(3, device="cuda", generator=torch.cuda.default_generators[0]).is_cuda


@of_other_processes
def test_a_forked_process_cannot_use_it():
    done = in_a_new_process(
        "import os\n"
        "torch.ones(1).cuda()\n"
        "if os.fork() == 0:\n"
        "    try:\n"
        "        torch.ones(1).cuda()\n"
        "    except RuntimeError as error:\n"
        "        os._exit(7 if 'forked' in str(error) else 1)\n"
        "    os._exit(0)\n"
        "print(os.waitstatus_to_exitcode(os.wait()[1]))"
    )
    assert done.stdout.strip() == "7", done.stderr


@of_other_processes
def test_pytorch_must_not_be_there_before():
    done = python("import torch, emulated_cuda\nemulated_cuda.install()")
    assert done.returncode == 1 and "Unavailable" in done.stderr


@of_other_processes
def test_tests_without_a_device_that_should_be_there_fail(tmp_path):
    """A device that does not compile is no reason to leave out the tests that need it."""
    (tmp_path / "c++").write_text("#!/bin/sh\nexit 1\n")
    (tmp_path / "c++").chmod(0o755)
    (tmp_path / "test_it.py").write_text("def test_it(): pass")
    changed = {
        "CXX": str(tmp_path / "c++"),
        "TORCH_EXTENSIONS_DIR": str(tmp_path / "compiled"),
        "PYTHONPATH": str(ROOT),
    }
    env = {name: value for name, value in os.environ.items() if name != "EMULATED_CUDA"} | changed
    command = [sys.executable, "-m", "pytest", "-p", "emulated_cuda.pytest_plugin", "-c", os.devnull, tmp_path]
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, check=False, env=env)
    assert done.returncode and "does not compile" in done.stderr + done.stdout


# ---------------------------------------------------------------------------------------------------------- arithmetic


def both(function, *inputs):
    """A function's results and gradients on the CPU and on the device."""
    result = []
    for device in ("cpu", "cuda"):
        torch.manual_seed(3)
        on_device = [t.to(device).detach().requires_grad_(t.is_floating_point()) for t in inputs]
        out = function(*on_device)
        out.float().pow(2).sum().backward()
        assert out.device.type == device
        result.append([out.detach().cpu(), *(t.grad.cpu() for t in on_device if t.grad is not None)])
    return result


FUNCTIONS = {
    "product": lambda a, b: (a @ b.t()).tanh(),
    "softmax": lambda a, b: a.softmax(-1) + b.log_softmax(0),
    "norm": lambda a, b: F.layer_norm(a, (6,), b[0], b[1]),
    "index": lambda a, b: a[:, [0, 2]].repeat_interleave(torch.tensor([1, 0, 2, 1], device=a.device), dim=0) + b[0, 0],
    "views": lambda a, b: a.t().reshape(2, 3, 4).unfold(2, 2, 1).transpose(0, 1).flip(0) * b.expand(2, 4, 6).mean(),
    "sorted": lambda a, b: a.sort(dim=1).values.cumsum(0) + b.topk(6).values,
    "in place": lambda a, b: (
        a.clone().masked_fill_(b > 0, 2.0).index_add_(0, torch.tensor([1], device=a.device), b[:1])
    ),
    "scatter": lambda a, b: torch.zeros_like(a).scatter_add(1, (b > 0).long(), a),
    "einsum": lambda a, b: torch.einsum("ij,kj->ik", a, b),
    "complex": lambda a, b: torch.view_as_real(torch.view_as_complex(a.reshape(4, 3, 2)) * torch.fft.fft(b)[:, :3]),
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_it_computes_as_the_cpu(name):
    torch.manual_seed(1)
    on_cpu, on_device = both(FUNCTIONS[name], torch.randn(4, 6), torch.randn(4, 6))
    for a, b in zip(on_cpu, on_device, strict=True):
        torch.testing.assert_close(b, a, atol=1e-6, rtol=1e-6)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_attention_in_one_kernel(causal, dtype):
    """It is the attention that is written out, forward and backward, with a mask and without."""
    torch.manual_seed(2)
    q, k, v = (torch.randn(2, 4, 7, 8, dtype=dtype) for _ in range(3))
    mask = None if causal else torch.randn(2, 1, 7, 7, dtype=dtype)

    def attention(q, k, v):
        return F.scaled_dot_product_attention(
            q, k, v, None if mask is None else mask.to(q.device), is_causal=causal, dropout_p=0.0
        )

    tolerance = {torch.float32: 1e-5, torch.float16: 1e-2, torch.bfloat16: 6e-2}[dtype]
    on_cpu, on_device = both(attention, q, k, v)
    for a, b in zip(on_cpu, on_device, strict=True):
        torch.testing.assert_close(b, a, atol=tolerance, rtol=tolerance)
    q, k, v = q.cuda(), k.cuda(), v.cuda()
    with emulated_cuda.counted() as counts:
        F.scaled_dot_product_attention(q, k, v, is_causal=causal)
    assert counts.kernels == 1, counts.of_kernels


def test_the_dropout_of_attention_is_the_same_in_its_gradient():
    torch.manual_seed(4)
    q, k = torch.randn(1, 2, 5, 8, device="cuda"), torch.randn(1, 2, 5, 8, device="cuda")
    v = torch.randn(1, 2, 5, 8, device="cuda", requires_grad=True)
    out = F.scaled_dot_product_attention(q, k, v, dropout_p=0.5)
    ones = torch.ones_like(out)
    (gradient,) = torch.autograd.grad(out, v, ones)
    # out = W v and gradient = W' 1: their sums with the other's factor agree for the same W only
    assert (out * ones).sum().item() == pytest.approx((gradient * v).sum().item(), rel=1e-4)
    assert not torch.equal(out, F.scaled_dot_product_attention(q, k, v, dropout_p=0.5))


@pytest.mark.parametrize("layers, both_ways", [(1, False), (2, True)])
def test_lstm(layers, both_ways):
    torch.manual_seed(5)
    on_cpu = torch.nn.LSTM(3, 4, layers, bidirectional=both_ways)
    on_device = torch.nn.LSTM(3, 4, layers, bidirectional=both_ways).cuda()
    on_device.load_state_dict(on_cpu.state_dict())
    packed = torch.randn(6, 2, 3)
    for model, device in ((on_cpu, "cpu"), (on_device, "cuda")):
        padded = torch.nn.utils.rnn.pack_padded_sequence(packed.to(device), torch.tensor([6, 4]))
        model(padded)[0].data.pow(2).sum().backward()
    for a, b in zip(on_cpu.parameters(), on_device.parameters(), strict=True):
        torch.testing.assert_close(b.grad.cpu(), a.grad, atol=1e-5, rtol=1e-4)


def test_half_precision_is_rounded_and_overflows():
    a = torch.tensor([60000.0, 1e-8, 1.0], device="cuda", dtype=torch.half)
    assert torch.isinf(a[0] + a[0]) and a[1] == 0 and a[2] + 2.0**-12 == 1
    assert a.bfloat16()[0].item() == 59904
    # softmax adds up in float32, and writes it where it is told to
    wide = torch.zeros(4096, device="cuda", dtype=torch.half).softmax(0, dtype=torch.float32)
    assert wide.dtype == torch.float32 and wide.sum().item() == pytest.approx(1)
    scaler = torch.amp.GradScaler("cuda", init_scale=2.0**14)
    weight = torch.nn.Parameter(torch.ones(2, device="cuda"))
    optimizer = torch.optim.SGD([weight], lr=1.0)
    with torch.autocast("cuda", dtype=torch.float16):
        scaler.scale((weight.view(1, 2) @ weight.view(2, 1)).sum() * 60000).backward()
    scaler.step(optimizer)
    scaler.update()
    assert scaler.get_scale() == 2.0**13 and torch.equal(weight.detach().cpu(), torch.ones(2)), "it was to be left out"


def test_saved_and_loaded(tmp_path):
    model = torch.nn.Linear(3, 2).cuda("cuda:1")
    torch.save(model.state_dict(), tmp_path / "model.pt")
    for where in ("cuda:0", "cpu", "cuda:1"):
        state = torch.load(tmp_path / "model.pt", map_location=where)
        assert state["weight"].device == torch.device(where)
        assert torch.equal(state["weight"].cpu(), model.weight.detach().cpu())


# ----------------------------------------------------------------------------------------------- devices and streams


def test_several_devices():
    a = torch.ones(3, device="cuda:1")
    with torch.cuda.device(1):
        assert torch.zeros(2, device="cuda").device.index == 1
    assert (a + a).device.index == 1 and a.to("cuda:0").device.index == 0
    before = torch.cuda.memory_allocated(1), torch.cuda.memory_allocated(0)
    kept = torch.empty(1000, device="cuda:1")
    assert torch.cuda.memory_allocated(1) - before[0] == 4096
    assert torch.cuda.memory_allocated(0) == before[1]
    del kept
    assert torch.cuda.memory_allocated(1) == before[0]


def test_gradients_of_two_devices_meet():
    weight = torch.ones(3, device="cuda:0", requires_grad=True)
    (weight.to("cuda:1") * x(3, device="cuda:1")).sum().backward()
    assert weight.grad.device.index == 0 and weight.grad.tolist() == [1, 2, 3]


def test_a_copy_to_the_host_that_nobody_waited_for():
    there = x(3)
    here = there.to("cpu", non_blocking=True)
    assert here.is_pinned() and here.isnan().all(), "it must not be there yet"
    torch.cuda.current_stream().synchronize()
    assert here.tolist() == [1, 2, 3]
    here = there.to("cpu", non_blocking=True)
    assert here.to("cuda", non_blocking=True).tolist() == [1, 2, 3], "the stream keeps its order"
    here = there.to("cpu", non_blocking=True)
    assert torch.cuda.current_stream().query() and here.tolist() == [1, 2, 3], "who was told that it is done may read"
    here = there.to("cpu", non_blocking=True)
    event = torch.cuda.current_stream().record_event()
    assert here.isnan().all() and event.query() and here.tolist() == [1, 2, 3]


def test_a_copy_of_memory_that_is_changed_too_early():
    memory = torch.ones(1000).pin_memory()
    there = memory.to("cuda", non_blocking=True)
    memory.zero_()
    with pytest.raises(RuntimeError, match="pinned memory"):
        torch.cuda.synchronize()
    there = memory.to("cuda", non_blocking=True)
    torch.cuda.synchronize()
    memory.fill_(2.0)
    assert there.sum().item() == 0


def test_streams_wait_for_each_other_or_are_refused():
    a = x(3)
    torch.cuda.synchronize()
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        b = a + 1
    with pytest.raises(RuntimeError, match="stream"):
        b + 1
    torch.cuda.current_stream().wait_stream(side)
    assert (b + 1).tolist() == [3, 4, 5]
    c = a * 2
    event = torch.cuda.Event()
    event.record()
    with torch.cuda.stream(side):
        with pytest.raises(RuntimeError, match="stream"):
            c + 1
        event.wait()
        assert (c + 1).tolist() == [3, 5, 7]


@of_other_processes
def test_a_first_stream_waits_for_what_was_before_it():
    done = in_a_new_process(
        "a = torch.ones(3, device='cuda') + 1\nwith torch.cuda.stream(torch.cuda.Stream()):\n    a + 1"
    )
    assert done.returncode == 1 and "a stream uses memory that another stream works on" in done.stderr


def test_a_copy_between_devices_waits_for_both():
    torch.cuda.Stream()
    there = (x(3) + 1).to("cuda:1")
    assert (there * 2).tolist() == [4, 6, 8]
    here = torch.empty(3, device="cuda")
    here.copy_(there + 1)
    assert (here + 1).tolist() == [4, 5, 6]


@of_other_processes
def test_nccl_takes_contiguous_tensors_alone():
    code = (
        "import torch.distributed as dist\n"
        "dist.init_process_group('nccl', store=dist.HashStore(), rank=0, world_size=1)\n"
        "a = torch.ones(2, 3, device='cuda')\n"
        "dist.all_reduce(a)\n"
        "for part in (a.t(), a[:, 0]):\n"
        "    for call in (dist.all_reduce, lambda part: dist.all_gather([torch.ones(2, device='cuda')], part)):\n"
        "        try:\n"
        "            call(part)\n"
        "        except ValueError as error:\n"
        "            print(error)"
    )
    done = in_a_new_process(code, "-W", "ignore")
    assert done.stdout == "Tensors must be contiguous\n" * 4, done.stderr


def test_a_thread_has_its_own_current_device():
    seen = []
    torch.cuda.set_device(1)
    thread = threading.Thread(target=lambda: seen.append(torch.cuda.current_device()))
    thread.start()
    thread.join()
    assert torch.cuda.current_device() == 1 and seen == [0]
    torch.cuda.set_device(0)


def test_types_of_tensors():
    made = torch.cuda.DoubleTensor(3)
    assert made.shape == (3,) and made.dtype == torch.float64 and made.device.index == 0
    assert isinstance(made, torch.cuda.DoubleTensor) and not isinstance(made, torch.cuda.FloatTensor)
    assert torch.cuda.LongTensor([4, 5]).tolist() == [4, 5]


# -------------------------------------------------------------------------------------------------------------- counts


def counts_of(function):
    with emulated_cuda.counted() as counts:
        function()
    return counts


def test_what_is_a_read():
    a, mask = x(4), x(4) > 2
    waiting = [a.sum().item, a.tolist, a.cpu, mask.nonzero, lambda: a[mask], lambda: bool(mask.any())]
    waiting += [lambda: a.repeat_interleave(mask.long()), lambda: torch.equal(a, a), lambda: a.masked_select(mask)]
    waiting += [lambda: a.clone().index_put_((mask,), a[:2])]
    assert [counts_of(f).reads for f in waiting] == [1] * len(waiting)
    none = [lambda: a + 1, lambda: a.repeat_interleave(mask.long(), output_size=2), lambda: a.view(2, 2).t()]
    none += [lambda: a.clone().masked_fill_(mask, 0), lambda: a.__setitem__(mask, 0.0), lambda: a.topk(2)]
    none += [lambda: a.to("cpu", non_blocking=True), lambda: torch.where(mask, a, 0.0)]
    none += [lambda: a.multinomial(2, replacement=True)]
    assert [counts_of(f).reads for f in none] == [0] * len(none)
    # Before it draws without replacement, or once, PyTorch looks at the values in two steps.
    assert counts_of(lambda: a.multinomial(2)).reads == counts_of(lambda: a.multinomial(1, replacement=True)).reads == 2


def test_copies_and_kernels():
    here = torch.ones(1000)
    counts = counts_of(lambda: here.cuda())
    assert (counts.copies, counts.unpinned_copies, counts.blocking_copies, counts.copied_bytes) == (1, 1, 1, 4000)
    pinned = here.pin_memory()
    counts = counts_of(lambda: pinned.to("cuda", non_blocking=True))
    assert (counts.copies, counts.unpinned_copies, counts.blocking_copies) == (1, 0, 0)
    a = x(3, 3)
    counts = counts_of(lambda: (a @ a).t()[0].sum())
    assert counts.kernels == 2, "views are free"


def test_a_list_is_copied_at_once_where_layouts_and_types_agree():
    halves = [torch.arange(6.0).view(2, 3).half().cuda(), torch.ones(4).half().cuda()]
    singles = [torch.empty(2, 3, device="cuda"), torch.empty(4, device="cuda")]
    counts = counts_of(lambda: torch._foreach_copy_(singles, halves))
    assert counts.kernels == 1 and singles[0].tolist() == [[0, 1, 2], [3, 4, 5]] and singles[1].tolist() == 4 * [1]
    other_strides = [halves[0].t().contiguous().t(), halves[1]]
    other_types = [halves[0], halves[1].float()]
    for one_by_one in (other_strides, other_types):
        assert counts_of(lambda of=one_by_one: torch._foreach_copy_(singles, of)).kernels == 2
    counts = counts_of(lambda: torch._foreach_copy_(singles, [torch.zeros(2, 3), torch.zeros(4)]))
    assert counts.copies == 2 and singles[0].sum().item() == 0


def test_a_model_of_any_size_without_computing():
    with emulated_cuda.sizes_only(), emulated_cuda.counted(trace=True) as counts:
        a = torch.empty(50_000, 50_000, device="cuda")
        b = (a @ a).half()
    assert b.shape == (50_000, 50_000)
    # the matrix, its square and its half: 10 + 10 + 5 thousand million bytes
    assert 25e9 <= counts.peak <= 25.1e9
    product = counts.trace[0]
    assert product.operations == 2 * 50_000**3 and product.bytes == 3 * 4 * 50_000**2
    del a, b
    assert x(2).tolist() == [1, 2], "it computes again"
