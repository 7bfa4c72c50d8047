"""Children that start in milliseconds: forked from one process that has imported all a training needs.

A test talks to that process (`ForkServer`) over its stdin and stdout, a line of JSON each way. It forks while it has no
other thread, so a child is as good as a fresh process: it runs ``fastadv.train.main`` with its own arguments,
environment, limits and planted faults, and ends by ``os._exit`` once what runs at an interpreter's exit has run.
"""

import gc
import importlib
import json
import os
import resource
import select
import signal
import subprocess
import sys
import threading
import time
import traceback
import tracemalloc
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Optional, Sequence

ROOT = Path(__file__).resolve().parents[2]
_IMPORTED = """
deepspeed.runtime.zero.stage_1_and_2 fastadv.launch.load fastadv.engine.loop fastadv.dry_run
fastadv.encoder.encoder fastadv.encoder.weights.lora fastadv.evaluation.vectors.scored_pairs
fastadv.evaluation.vectors.sts fastadv.report.write fastadv.data.sources.tables
fastadv.objectives.sentences.robustsentembed fastadv.objectives.sentences.simcse
docstring_parser fastadv.encoder.export.write pydantic matplotlib.pyplot matplotlib.backends.backend_svg
pyarrow.parquet pyarrow.dataset safetensors.torch scipy.stats sklearn.linear_model tokenizers
torch.utils.tensorboard torch._dynamo transformers.models.auto.modeling_auto
transformers.models.bert.modeling_bert transformers.models.bert.tokenization_bert
transformers.models.auto.tokenization_auto tests.faults.objectives tests.faults.plants
""".split()
# Of some releases of DeepSpeed, on first use and for a second, and of transformers 4.
_IMPORTED_WHERE_THERE = ["deepspeed.module_inject.auto_ep_layer", "transformers.models.bert.tokenization_bert_fast"]
_ALONE = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")


@dataclass
class Ended:
    """How a child ended."""

    status: int
    """its exit status, or minus the signal that killed it"""
    out: str
    err: str
    allocated_mib: float
    """the most that Python's objects and arrays took at a time, by the bytes asked for; 0 where nothing counted"""

    @property
    def said(self) -> list[str]:
        """The lines of its own error messages."""
        return [line for line in self.err.splitlines() if line.startswith("fastadv: ")]


@dataclass
class Child:
    """A started child; it leads a session of its own."""

    server: "ForkServer"
    pid: int
    out_path: Path
    err_path: Path
    allocated_path: Path
    pidfd: int = field(init=False)

    def __post_init__(self):
        self.pidfd = os.pidfd_open(self.pid)

    @property
    def err(self) -> str:
        return self.err_path.read_text(errors="replace")

    def has_ended(self, timeout_s: float = 0.0) -> bool:
        return bool(select.select([self.pidfd], [], [], timeout_s)[0])

    def signal(self, number: int) -> None:
        signal.pidfd_send_signal(self.pidfd, number)

    def stop(self) -> bool:
        """Stops the child with SIGSTOP; False where it had ended before."""
        if not self.has_ended():
            self.signal(signal.SIGSTOP)
        return self.is_stopped(10.0)

    def is_stopped(self, timeout_s: float) -> bool:
        """Whether it stops within so many seconds, by us or by itself; False where it ends."""
        until = time.monotonic() + timeout_s
        while not self.has_ended():
            state = Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()[0]
            if state == "T":
                return True
            if time.monotonic() > until:
                return False
            time.sleep(0.0005)
        return False

    def written_files(self) -> list[Path]:
        """The files it has open for writing."""
        found = []
        for link in Path(f"/proc/{self.pid}/fd").iterdir():
            try:
                flags = Path(f"/proc/{self.pid}/fdinfo/{link.name}").read_text().split("flags:")[1].split()[0]
                if int(flags, 8) & os.O_ACCMODE:
                    found.append(Path(os.readlink(link)))
            except OSError:
                continue
        return found

    def kill(self) -> None:
        """SIGKILL, for it and whatever it has started."""
        try:
            os.killpg(self.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass

    def wait(self, timeout_s: float = 600.0) -> Ended:
        """Waits for its end; a child that hangs is killed, which fails the test."""
        is_late = not self.has_ended(timeout_s)
        if is_late:
            self.kill()
        done = self.server.ask({"reap": self.pid})
        os.close(self.pidfd)
        allocated = int(self.allocated_path.read_text()) if self.allocated_path.exists() else 0
        out = self.out_path.read_text(errors="replace")
        ended = Ended(done["status"], out, self.err, allocated / 2**20)
        assert not is_late, f"still running after {timeout_s:.0f} s:\n{ended.out[-2000:]}\n{ended.err[-4000:]}"
        return ended

    def orphans(self) -> list[int]:
        """Living processes of its session."""
        found = []
        for entry in Path("/proc").iterdir():
            if entry.name.isdigit():
                try:
                    state, _, _, session = (entry / "stat").read_text().rpartition(")")[2].split()[:4]
                except OSError:
                    continue
                if int(session) == self.pid and state not in "ZX":
                    found.append(int(entry.name))
        return found


class ForkServer:
    """Starts the process to fork from, and children out of it.

    Args:
        folder: takes the children's output.
    """

    def __init__(self, folder: Path):
        self.folder = folder
        self._num_started = 0
        environment = {name: value for name, value in os.environ.items() if name not in _ALONE}
        # One thread: numpy's and OpenMP's pools would begin at import.
        environment.update(OMP_NUM_THREADS="1", OPENBLAS_NUM_THREADS="1", MKL_NUM_THREADS="1", DS_ACCELERATOR="cpu")
        # Arrow's own allocator would start a thread.
        environment.update(JE_ARROW_MALLOC_CONF="background_thread:false", MPLBACKEND="Agg")
        environment.update(HF_HUB_OFFLINE="1", TOKENIZERS_PARALLELISM="false")
        environment["PYTHONPATH"] = os.pathsep.join([str(ROOT), *(entry for entry in sys.path if entry)])
        self._log = open(folder / "server.txt", "w+")
        self._process = subprocess.Popen(
            [sys.executable, "-c", "from tests.faults.forkserver import serve; serve()"],
            cwd=ROOT,
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            text=True,
        )
        self._answer()

    def start(
        self,
        arguments: Sequence[str],
        env: Optional[dict[str, str]] = None,
        limits: Optional[dict[str, int]] = None,
        plants: Sequence[tuple[str, dict[str, Any]]] = (),
        counts_memory: bool = False,
    ) -> Child:
        """Forks a child that runs ``fastadv train`` with ``arguments``.

        Args:
            env: variables set beside those of this process.
            limits: bytes by name of a resource limit ("FSIZE"); "AS" is added to what the server holds.
            plants: names in `tests.faults.plants` and their arguments, called before the training.
            counts_memory: `Ended.allocated_mib` is counted.
        """
        self._num_started += 1
        paths = [self.folder / f"child-{self._num_started}.{kind}" for kind in ("out", "err", "allocated")]
        request = {"arguments": [*map(str, arguments)], "env": env or {}, "limits": limits or {}, "plants": plants}
        request["counts_memory"] = counts_memory
        pid = self.ask({**request, "paths": [*map(str, paths)]})["pid"]
        return Child(self, pid, *paths)

    def run(self, arguments: Sequence[str], **options) -> Ended:
        """`start` and `Child.wait`."""
        return self.start(arguments, **options).wait()

    def ask(self, request: dict[str, Any]) -> dict[str, Any]:
        self._process.stdin.write(json.dumps(request) + "\n")
        self._process.stdin.flush()
        return self._answer()

    def _answer(self) -> dict[str, Any]:
        line = self._process.stdout.readline()
        if not line:
            self._log.seek(0)
            raise RuntimeError(f"the fork server has ended:\n{self._log.read()[-4000:]}")
        return json.loads(line)

    def close(self) -> None:
        """Ends the server, which kills what is left of its children."""
        self._process.stdin.close()
        self._process.wait(timeout=30)
        self._process.stdout.close()
        self._log.close()


def serve() -> None:
    """The server: forks and reaps as it is asked to, until its stdin ends."""
    import torch

    torch.set_num_threads(1)
    from fastadv.distributed.processes import import_deepspeed

    import_deepspeed()
    for name in _IMPORTED:
        importlib.import_module(name)
    for name in _IMPORTED_WHERE_THERE:
        with suppress(ImportError):
            importlib.import_module(name)
    # What is there is neither searched for garbage by the children, nor copied for it.
    gc.collect()
    gc.freeze()
    _answer_with({})
    living = set()
    for line in sys.stdin:
        request = json.loads(line)
        if "reap" in request:
            _, status = os.waitpid(request["reap"], 0)
            living.discard(request["reap"])
            _answer_with({"status": os.waitstatus_to_exitcode(status)})
            continue
        threads = os.listdir("/proc/self/task")
        assert len(threads) == 1, f"a fork beside {len(threads) - 1} other threads may hang"
        pid = os.fork()
        if pid == 0:
            _be_child(request)
        living.add(pid)
        _answer_with({"pid": pid})
    for pid in living:
        try:
            os.killpg(pid, signal.SIGKILL)
        except ProcessLookupError:
            pass


def _answer_with(answer: dict[str, Any]) -> None:
    os.write(1, (json.dumps(answer) + "\n").encode())


def _be_child(request: dict[str, Any]) -> None:
    status = 70
    try:
        os.setsid()
        os.environ.update(request["env"])
        streams = [os.open(os.devnull, os.O_RDONLY)]
        streams += [os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644) for path in request["paths"][:2]]
        for number, descriptor in enumerate(streams):
            os.dup2(descriptor, number)
            os.close(descriptor)
        _limit(request["limits"])
        from fastadv import train
        from tests.faults import plants

        for name, options in request["plants"]:
            getattr(plants, name)(**options)
        if request["counts_memory"]:
            tracemalloc.start()
        status = train.main(request["arguments"])
        if request["counts_memory"]:
            Path(request["paths"][2]).write_text(str(tracemalloc.get_traced_memory()[1]))
        # What an interpreter does at its end: threads that are waited for, and functions registered.
        threading._shutdown()
        importlib.import_module("atexit")._run_exitfuncs()
    except SystemExit as error:
        status = error.code if isinstance(error.code, int) else 1
    except BaseException:
        traceback.print_exc()
        status = 1
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)


def _limit(limits: dict[str, int]) -> None:
    for name, value in limits.items():
        if name == "AS":
            value += int(Path("/proc/self/statm").read_text().split()[0]) * os.sysconf("SC_PAGE_SIZE")
        kind = getattr(resource, f"RLIMIT_{name}")
        resource.setrlimit(kind, (value, resource.getrlimit(kind)[1]))
