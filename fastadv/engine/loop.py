"""The training loop: from a config to a run folder."""

from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, Sequence

import torch
from torch import Tensor

from fastadv.config.commands import encoding_words
from fastadv.config.schema import Config, to_yaml
from fastadv.data.packing import PackedBatch
from fastadv.distributed import processes, zero
from fastadv.distributed.devices import gpus_in_use
from fastadv.distributed.lost_ranks import explain_lost_ranks
from fastadv.distributed.signals import Interrupted, ending_steps, saving_on_request
from fastadv.engine.build import Run, build_run, check_machine, choose_kernels
from fastadv.engine.callbacks import Callback
from fastadv.engine.checkpoints.checkpoint import (
    Position,
    RunIdentity,
    load_checkpoint,
    read_state,
    require_same_run,
    save_checkpoint,
)
from fastadv.engine.checkpoints.checkpoint_folders import checkpoint_folders, newest_checkpoint
from fastadv.engine.checkpoints.run_folder import (
    begin_run,
    check_run_folder,
    claim_run_folder,
    model_card,
    takes_request,
)
from fastadv.engine.checkpoints.run_lock import RunLock, locked
from fastadv.engine.comparison import Comparison
from fastadv.engine.epoch_attack import texts_of_epoch
from fastadv.engine.guards import Guard
from fastadv.engine.monitor.gauges import Gauges
from fastadv.engine.monitor.metrics import MetricsLog, Progress
from fastadv.engine.selection import Selection
from fastadv.engine.trackers import build_trackers
from fastadv.engine.whole_model import WholeModel
from fastadv.launch.checks import check_config, check_encoder
from fastadv.perturbation import NonFiniteGradient

# What a rank may be asked for, the most last: a checkpoint, or a checkpoint and the end, by a signal if more.
_SAVE, _STOP = 1, 2


class Trainer:
    """Trains, measures and exports one encoder.

    ``Trainer(load_config("configs/quickstart.yaml")).fit()`` does what ``fastadv train`` does. A run folder that holds
    a checkpoint of the same run is gone on from, bit for bit.

    Args:
        config: the whole run.
        callbacks: told of steps, dev scores and checkpoints (`Callback`).
        encoder: trained in place of the one ``config.encoder`` names; it is changed, and holds the exported weights
            after ``fit``.
        writes_report: whether the run ends with report.html; drawing its curves takes a second or two, and ``fastadv
            report`` does it later, too.
    """

    config: Config
    callbacks: list[Callback]
    encoder: Any
    """The encoder that is trained; None before ``fit`` where none was given."""
    run_folder: Path
    position: Position
    """Where the run stands: step, epoch, batch, best score."""
    total_steps: int | None
    """Steps of the whole run, known once ``fit`` has read the data."""
    device: torch.device
    """Of this rank."""
    run: Run
    """Data, step and exported model, as `build_run` makes them from the config."""
    identity: RunIdentity
    """What a checkpoint must have in common with this run."""
    comparison: Comparison
    """The measurements before and after training."""
    whole_model: WholeModel
    """The exported model outside of DeepSpeed's pieces."""
    selection: Selection
    """Dev scores, and the weights that they choose."""
    engine: Any
    """DeepSpeed's engine around ``run.step``."""
    guard: Guard
    """Rules what becomes of a batch that is not finite."""
    gauges: Gauges
    """Collect what the next line of the log holds."""
    progress: Progress
    """The line or the bar on the terminal."""
    _lock: RunLock
    """Of the run folder, held by the first rank."""
    _seen: list[Path]
    """Checkpoints of the run folder before it was locked."""
    log: MetricsLog | None
    """metrics.jsonl and TensorBoard's events, of the first rank."""

    def __init__(
        self, config: Config, callbacks: Sequence[Callback] = (), encoder: Any = None, writes_report: bool = True
    ):
        self.config, self.encoder = config, encoder
        self.callbacks = [*callbacks, *build_trackers(config)]
        self.run_folder = Path(config.train.output_dir).expanduser()
        self.position, self.total_steps = Position(), None
        self._writes_report = writes_report
        self._stop, self._is_save_wanted = 0, False

    @property
    def is_finished(self) -> bool:
        """Whether every step of the run is done, or dev scores have ended it (``dev.patience``)."""
        is_at_end = self.total_steps is not None and self.position.step >= self.total_steps
        return is_at_end or self.position.is_out_of_patience(self.config.dev.patience)

    def request_stop(self) -> None:
        """Ends the run after the current step, with a checkpoint to go on from and without an export."""
        self._stop = self._stop or _STOP

    @explain_lost_ranks
    def fit(self) -> Path:
        """Runs to the end, from the start or from the newest checkpoint that is whole.

        Returns:
            the run folder.

        Raises:
            UserError: a mistake in the config or in what it names, a run folder that another process writes to, or a
                platform where DeepSpeed is not.
            NonFiniteUpdate, NonFiniteGradient, TooManySkips: training ran into a NaN or an infinity.
            SaveFailed: a checkpoint could not be written, or another run has taken the folder over; those before it are
                as they were.
            Collapsed: all vectors became alike and ``train.collapse`` is raise.
            OtherRankFailed: another rank ended, or did not answer within ``engine.timeout_minutes``.
            KeyboardInterrupt: after Ctrl-C, SIGTERM, SIGHUP or SIGUSR1, once the step is done and a checkpoint written.
        """
        self._stop, self._is_save_wanted = 0, False
        with saving_on_request(self._want_save):
            return self._fit()

    def _fit(self) -> Path:
        self._check()
        self.device = processes.init_distributed(self.config.engine.timeout_minutes)
        with ExitStack() as held:
            processes.first_rank_only(lambda: self._lock_run_folder(held))
            return self._run()

    def _run(self) -> Path:
        checkpoint = newest_checkpoint(self.run_folder)
        self._build()
        if checkpoint is not None:
            # Before anything is written or measured.
            require_same_run(checkpoint, read_state(checkpoint)[1], self.identity)
        processes.first_rank_only(lambda: begin_run(self.run_folder, to_yaml(self.config), checkpoint is not None))
        self._on_first_rank(lambda: self.comparison.measure_before(self.encoder))
        with ExitStack() as at_end:
            self._start(checkpoint, at_end)
            with ending_steps(self._end_by_signal):
                self._train()
            weights = self.whole_model.weights()
        if self.is_finished:
            self.whole_model.finish(weights)
            # It is in float32 from here on, in the caller's hands too.
            self.encoder.attention = "auto"
            self._on_first_rank(lambda: self._export(weights))
        return self.run_folder

    def _check(self) -> None:
        """What can be refused before processes meet, data are read and weights are loaded."""
        processes.require_training_platform()
        check_config(self.config)
        if self.encoder is None:
            check_encoder(self.config)
        else:
            own, given = self.encoder, self.config.encoder
            given.pooling, given.max_length = own.pooling, own.max_length
            given.prompt, given.prompt_name = own.prompt or given.prompt, None
        choose_kernels(self.config)
        check_machine(self.config)
        if self.config.engine.num_threads is not None:
            torch.set_num_threads(self.config.engine.num_threads)
        claim_run_folder(self.config)
        self._seen = checkpoint_folders(self.run_folder)

    def _lock_run_folder(self, held: ExitStack) -> None:
        self._lock = held.enter_context(locked(self.run_folder))
        if checkpoint_folders(self.run_folder) != self._seen:
            # Another run has written to it since it was looked at.
            check_run_folder(self.config)

    def _build(self) -> None:
        """The parts that hold weights and data, as they are before training."""
        config = self.config
        self.run = run = build_run(config, self.device, self.encoder)
        self.encoder, self.total_steps = run.encoder, run.data.total_steps
        self.identity = RunIdentity.of(config, run.data.total_steps, run.data.fingerprint)
        self.comparison = Comparison(config.evaluation, self.run_folder, config.data)

    def _start(self, checkpoint: Path | None, at_end: ExitStack) -> None:
        """The parts that train, at the state of ``checkpoint`` or at the seed's; ``at_end`` closes them."""
        config, run = self.config, self.run
        is_used_on_the_way = run.dev_score is not None or run.step.objective.needs.epoch_attack is not None
        self.whole_model = WholeModel(run.model, config, is_used_on_the_way)
        self.selection = Selection(config, self.run_folder, run.dev_score, self.whole_model)
        self.engine = zero.initialise(run.step, config, run.data.total_steps)
        at_end.callback(self._call, "on_end")
        at_end.callback(self._destroy_engine)
        self.position, remarks = Position(), []
        if checkpoint is None:
            # One stream of dropout masks a rank.
            torch.manual_seed(config.train.seed + processes.rank())
        else:
            self.position, extra_state, remarks = load_checkpoint(checkpoint, self.engine, self.identity)
            run.step.load_extra_state_dict(extra_state)
            remarks.append(f"going on from {checkpoint}")
        is_first, step = processes.is_first_rank(), self.position.step
        self.log = MetricsLog(self.run_folder, step + 1) if is_first else None
        if self.log is not None:
            at_end.callback(self.log.close)
        self.progress = Progress(run.data.total_steps, step, is_shown=is_first)
        at_end.callback(self.progress.close)
        self.gauges = Gauges(config, run.step, self.device, step)
        self.guard = Guard(config.train, run.step, self.position, self.encoder.tokenizer)
        encoding = f"encoder.model: {config.encoder.model}, {encoding_words(self.encoder.settings)}"
        for line in (encoding, run.data.description, *remarks):
            self.progress.say(line)

    def _destroy_engine(self) -> None:
        zero.destroy(self.engine)
        # What it holds, the optimizer's state above all, is not needed while the export is measured.
        del self.engine

    def _train(self) -> None:
        position = self.position
        saved_at = position.step if position.step else -1
        asked = 0
        self.engine.train()
        while not self.is_finished:
            self._attack_if_due()
            batches = self.run.data.batches(position.epoch, position.batch)
            for batch in self.gauges.clock.each("data", batches):
                if not self._one_batch(batch.to(self.device)):
                    continue
                self._evaluate_if_due()
                if self._is_save_due():
                    self._save()
                    saved_at = position.step
                asked = self._agree_on_what_is_asked()
                if asked >= _STOP or self.is_finished:
                    break
                if asked == _SAVE:
                    self._is_save_wanted = False
                    if saved_at != position.step:
                        self._save()
                        saved_at = position.step
                    self.progress.say(f"step {position.step}: a checkpoint, as asked")
            else:
                position.epoch, position.batch = position.epoch + 1, 0
            if asked >= _STOP:
                break
        if saved_at != position.step:
            self._save()
        # What came while it was written.
        asked = max(asked, self._agree_on_what_is_asked())
        if asked > _STOP:
            newest = checkpoint_folders(self.run_folder)[-1]
            raise Interrupted(
                f"stopped after step {position.step} of {self.total_steps}; the same command goes on from {newest}",
                asked - _STOP,
            )

    def _one_batch(self, batch: PackedBatch) -> bool:
        """Forward and backward, and whether the batch was the last of a step: then optimizer and eta table follow."""
        position, step_module, guard, gauges = self.position, self.run.step, self.guard, self.gauges
        step = position.step + 1
        learning_rate = self.engine.get_lr()[0]
        position.batch += 1
        guard.remember()
        try:
            with gauges.clock("forward"):
                loss = self.engine(batch)
            self.progress.count(step_module.whole.num_rows, step_module.whole.num_tokens)
            gauges.count(batch)
            if step_module.is_skipped:
                gauges.add(guard.reject(None, step, batch))
                return False
            max_grad_norm = self.config.optimizer.max_grad_norm
            loss_value, grad_norm = zero.update(self.engine, loss, max_grad_norm, step, gauges.clock)
        except (NonFiniteGradient, zero.NonFiniteUpdate) as error:
            gauges.add(guard.reject(error, step, batch))
            return False
        except Exception as error:
            guard.explain(error, step, batch)
            raise
        guard.keep(is_whole_step=grad_norm is not None)
        gauges.add({**step_module.metrics, "loss": loss_value})
        if grad_norm is None:
            return False
        gauges.add({"grad_norm": grad_norm})
        step_module.commit()
        position.step = step
        self._tell(learning_rate)
        return True

    def _tell(self, learning_rate: float) -> None:
        position, metrics = self.position, {}
        if position.step % self.config.train.log_every == 0 or self.is_finished:
            metrics = {**self.gauges.take(position.step), "lr": learning_rate}
            metrics.update(epoch=position.epoch, num_skipped=position.num_skipped)
        self.progress.advance(metrics)
        if metrics and self.log is not None:
            metrics.update(self.progress.rates)
            self.log.write(position.step, metrics)
        self._call("on_step", position.step, metrics)

    def _attack_if_due(self) -> None:
        """At an epoch's start: the training texts that an attack fools the model on, for an objective that asks."""
        plan, position = self.run.step.objective.needs.epoch_attack, self.position
        if plan is None:
            return
        model = self.whole_model.as_it_is() if position.batch == 0 else None
        with self._measuring(), self.gauges.clock("attack"):
            pairs = texts_of_epoch(plan, position, model, self.run.data, self.run_folder, self.config.train.seed)
        self.run.data.variants.set_found(pairs)

    def _evaluate_if_due(self) -> None:
        position = self.position
        if not self.selection.is_due(position.step, self.is_finished):
            return
        with self._measuring(), self.gauges.clock("eval"):
            score, is_best = self.selection.evaluate(position)
        if self.log is not None:
            self.selection.forget_others(position.best_step)
            self.log.write(position.step, {"dev/score": score, "dev/best": position.best_score})
        self.progress.say(f"step {position.step}: dev {score:.2f}" + (", the best so far" if is_best else ""))
        if position.is_out_of_patience(self.config.dev.patience):
            self.progress.say(f"the last {position.num_scores_since_best} dev scores are no better (dev.patience)")
        self._call("on_eval", position.step, {"dev": score})

    def _is_save_due(self) -> bool:
        every = self.config.train.save_every
        return every is not None and self.position.step % every == 0

    def _save(self) -> None:
        position, is_first = self.position, processes.is_first_rank()
        with self.gauges.clock("save"):
            processes.first_rank_only(lambda: self._lock.require())
            beside = self.selection.entries(position.best_step) if is_first else {}
            extra_state = self.run.step.extra_state_dict()
            folder = save_checkpoint(self.run_folder, self.engine, extra_state, position, self.identity, beside)
        if is_first:
            self.selection.forget_others(position.best_step)
        self._call("on_save", position.step, folder)

    def _end_by_signal(self, number: int) -> None:
        self._stop = _STOP + number

    def _want_save(self) -> None:
        self._is_save_wanted = True

    def _agree_on_what_is_asked(self) -> int:
        """0, _SAVE, _STOP, or _STOP and a signal's number: the most that any rank was asked.

        A signal, or a callback's wish, may have reached one rank alone; the file is looked for by the first. What comes
        while ranks agree is kept for the next step.
        """
        if processes.is_first_rank() and takes_request(self.run_folder):
            self._want_save()
        return processes.highest(self._stop or _SAVE * self._is_save_wanted, self.device)

    def _export(self, weights: dict[str, Tensor]) -> None:
        """The chosen weights (``weights`` are the last) in float32, measured and written to ``model/``."""
        config, run, position, scores = self.config, self.run, self.position, {}
        if position.best_step is not None:
            weights = self.selection.load(position.best_step)
            scores = {f"dev ({config.dev.data}), step {position.best_step}": position.best_score}
        run.model.float()
        run.model.load_state_dict(weights)
        run.model.eval()
        table = self.comparison.measure_after(self.encoder)
        label_map, num_rows = run.data.label_map, len(run.data.text)
        card = model_card(config, to_yaml(config), num_rows, position.step, scores, table, self.encoder, label_map)
        self._lock.require()
        run.model.save_pretrained(self.run_folder / "model", card)
        if self._writes_report:
            from fastadv.report.write import write_report

            write_report(self.run_folder)

    def _on_first_rank(self, action) -> None:
        with self._measuring():
            processes.first_rank_only(action)

    @contextmanager
    def _measuring(self):
        """What is measured does not change the run. It is measured in float32, which not every ``engine.attention``
        computes in, and so by ``auto``, as what is exported will be."""
        kind, self.encoder.attention = self.encoder.attention, "auto"
        try:
            with generators_untouched():
                yield
        finally:
            self.encoder.attention = kind

    def _call(self, name: str, *arguments) -> None:
        if processes.is_first_rank():
            for callback in self.callbacks:
                getattr(callback, name)(self, *arguments)


@contextmanager
def generators_untouched():
    """torch's generators end where they began."""
    with torch.random.fork_rng(devices=gpus_in_use()):
        yield
