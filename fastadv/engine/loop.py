"""The training loop: from a config to a run folder."""

import copy
import math
import sys
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Optional, Sequence

import torch
from torch import Tensor

from fastadv.config.schema import Config, to_yaml
from fastadv.distributed import processes, zero
from fastadv.distributed.lost_ranks import explain_lost_ranks
from fastadv.distributed.platforms import require_training_platform
from fastadv.distributed.signals import Interrupted, ending_steps
from fastadv.encoder.classifier.text_classifier import Classifier
from fastadv.engine.build import (
    TrainingData,
    build_encoder,
    build_step,
    check_machine,
    check_resolution,
    choose_kernels,
    run_facts,
)
from fastadv.engine.callbacks import Callback
from fastadv.engine.checkpoints.checkpoint import (
    Position,
    RunIdentity,
    best_steps,
    load_checkpoint,
    read_state,
    require_same_run,
    save_checkpoint,
)
from fastadv.engine.checkpoints.checkpoint_folders import checkpoint_folders, newest_checkpoint
from fastadv.engine.checkpoints.run_folder import begin_run, claim_run_folder, model_card
from fastadv.engine.comparison import Comparison
from fastadv.engine.guards import Guard
from fastadv.engine.guards import TooManySkips as TooManySkips
from fastadv.engine.monitor.gauges import Gauges
from fastadv.engine.monitor.metrics import MetricsLog, Progress
from fastadv.engine.selection import BestWeights, dev_score, labelled_dev_score
from fastadv.engine.trackers import build_trackers
from fastadv.launch.checks import check_config, check_encoder
from fastadv.perturbation import NonFiniteGradient


class Trainer:
    """Trains, measures and exports one encoder.

    ``Trainer(load_config("configs/quickstart.yaml")).fit()`` does what ``fastadv train`` does. A run folder that holds
    a checkpoint of the same run is gone on from, bit for bit.

    Args:
        config: the whole run.
        callbacks: told of steps, dev scores and checkpoints (`Callback`).
        encoder: trained in place of the one ``config.encoder`` names; it is changed, and holds the exported weights
            after ``fit``.

    Attributes:
        config, encoder: as used.
        position: where the run stands (step, epoch, batch, best score).
        total_steps: of the whole run, known once ``fit`` has read the data.
    """

    def __init__(self, config: Config, callbacks: Sequence[Callback] = (), encoder=None):
        self.config = config
        self.callbacks = [*callbacks, *build_trackers(config)]
        self.encoder = encoder
        self.run_folder = Path(config.train.output_dir).expanduser()
        self.position = Position()
        self.total_steps: Optional[int] = None
        self._stop_asked = False
        self._signal: Optional[int] = None
        self._engine = self._progress = self._log = self._whole_model = None

    @property
    def is_finished(self) -> bool:
        """Whether every step of the run is done, or dev scores have ended it (``dev.patience``)."""
        is_at_end = self.total_steps is not None and self.position.step >= self.total_steps
        return is_at_end or self._is_out_of_patience

    @property
    def _is_out_of_patience(self) -> bool:
        patience = self.config.dev.patience
        return patience is not None and self.position.num_scores_since_best >= patience

    def request_stop(self) -> None:
        """Ends the run after the current step, with a checkpoint to go on from and without an export."""
        self._stop_asked = True

    @explain_lost_ranks
    def fit(self) -> Path:
        """Runs to the end, from the start or from the newest checkpoint that is whole.

        Returns:
            the run folder.

        Raises:
            UserError: a mistake in the config or in what it names, or a platform where DeepSpeed is not.
            NonFiniteUpdate, NonFiniteGradient, TooManySkips: training ran into a NaN or an infinity.
            SaveFailed: a checkpoint could not be written; those before it are as they were.
            Collapsed: all vectors became alike and ``train.collapse`` is raise.
            OtherRankFailed: another rank ended, or did not answer within ``engine.timeout_minutes``.
            KeyboardInterrupt: after Ctrl-C or SIGTERM, once the step is done and a checkpoint written.
        """
        self._stop_asked, self._signal = False, None
        require_training_platform()
        check_config(self.config)
        if self.encoder is None:
            check_encoder(self.config)
        choose_kernels(self.config)
        check_machine(self.config)
        if self.config.engine.num_threads is not None:
            torch.set_num_threads(self.config.engine.num_threads)
        claim_run_folder(self.config)
        self._device = processes.init_distributed(self.config.engine.timeout_minutes)
        checkpoint = newest_checkpoint(self.run_folder)
        self._dev_score = None if self.config.data.label_field else dev_score(self.config.dev.data)
        self._build()
        self._identity = RunIdentity.of(self.config, self.total_steps, self._data.fingerprint)
        if checkpoint is not None:
            # Before anything is written or measured.
            require_same_run(checkpoint, read_state(checkpoint)[1], self._identity)
        self._config_text = to_yaml(self.config)
        is_resumed = checkpoint is not None
        processes.first_rank_only(lambda: begin_run(self.run_folder, self._config_text, is_resumed))
        self._comparison = Comparison(self.config.evaluation, self.run_folder, self.config.data.field)
        with _generator_untouched():
            processes.first_rank_only(lambda: self._comparison.measure_before(self.encoder))
        needs_whole = self._dev_score is not None or self._step.objective.needs.epoch_attack is not None
        if self.config.engine.zero_stage == 3 and needs_whole:
            # Stage 3 cuts the weights to pieces; what is measured or attacked on the way is a whole model.
            self._whole_model = copy.deepcopy(self._model, {id(self.encoder.tokenizer): self.encoder.tokenizer})
        self._engine = zero.initialise(self._step, self.config, self.total_steps)
        try:
            self._start(checkpoint)
            with ending_steps(self._end_by_signal):
                self._train()
            weights = zero.full_precision_weights(self._model)
        finally:
            self._close()
        if self.is_finished:
            self._finish(weights)
        return self.run_folder

    def _build(self) -> None:
        if self.encoder is None:
            self.encoder = build_encoder(self.config)
        self.encoder.to(self._device)
        progress = processes.is_first_rank() and sys.stderr.isatty()
        self._data = TrainingData(self.config, self.encoder, progress)
        self.total_steps, label_map = self._data.total_steps, self._data.label_map
        self._step = build_step(self.config, self.encoder, self._data.text, label_map)
        objective = self._step.objective
        self._data.use_variants(objective, self.encoder)
        objective.begin(run_facts(self.config, self._data))
        self._model = self.encoder
        if label_map is not None:
            beside = objective.exported_beside()
            if self._step.second is not None:
                beside["second"] = Classifier(self._step.second, objective.second_classifier, label_map)
            self._model = Classifier(self.encoder, objective.classifier, label_map, beside)
            score = partial(labelled_dev_score, self.config, self.encoder, label_map, progress)
            self._dev_score = processes.first_rank_first(score)
        check_resolution(self.config, self._step, self._data.first_batch())

    def _start(self, checkpoint: Optional[Path]) -> None:
        """Sets generators and position: those of ``checkpoint``, or the seed's."""
        self._best = BestWeights(self.run_folder)
        remarks: list[str] = []
        self.position = Position()
        if checkpoint is None:
            # One stream of dropout masks a rank.
            torch.manual_seed(self.config.train.seed + self._engine.global_rank)
        else:
            self.position, extra_state, remarks = load_checkpoint(checkpoint, self._engine, self._identity)
            self._step.load_extra_state_dict(extra_state)
        is_first = processes.is_first_rank()
        self._progress = Progress(self.total_steps, self.position.step, is_shown=is_first)
        self._log = MetricsLog(self.run_folder, self.position.step + 1) if is_first else None
        self._gauges = Gauges(self.config, self._step, self._device, self.position.step)
        self._guard = Guard(self.config.train, self._step, self.position, self.encoder.tokenizer)
        self._progress.say(self._what_is_done())
        for remark in [*remarks, *([f"going on from {checkpoint}"] if checkpoint else [])]:
            self._progress.say(remark)

    def _what_is_done(self) -> str:
        train, order = self.config.train, self._data.order
        batches = f"{train.accumulation_steps} x " if train.accumulation_steps > 1 else ""
        ranks = processes.world_size()
        return (
            f"{self.total_steps} steps of {batches}{train.batch_size} of {len(self._data.text):,} sentences"
            + (f" on {ranks} processes" if ranks > 1 else "")
            + (f"; {order.num_left_out} an epoch are too few for a batch" if order.num_left_out else "")
        )

    def _train(self) -> None:
        saved_at = self.position.step if self.position.step else -1
        self._engine.train()
        while not self.is_finished:
            self._attack_if_due()
            batches = self._data.batches(self.position.epoch, self.position.batch)
            for batch in self._gauges.clock.each("data", batches):
                if not self._one_batch(batch.to(self._device)):
                    continue
                self._evaluate_if_due()
                if self._is_save_due():
                    self._save()
                    saved_at = self.position.step
                self._agree_on_stopping()
                if self._stop_asked or self.is_finished:
                    break
            else:
                self.position.epoch, self.position.batch = self.position.epoch + 1, 0
            if self._stop_asked:
                break
        if saved_at != self.position.step:
            self._save()
        if self._signal is not None:
            step, newest = self.position.step, checkpoint_folders(self.run_folder)[-1]
            raise Interrupted(
                f"stopped after step {step} of {self.total_steps}; the same command goes on from {newest}", self._signal
            )

    def _end_by_signal(self, number: int) -> None:
        self._stop_asked, self._signal = True, number

    def _agree_on_stopping(self) -> None:
        """A signal, or a callback's wish, may have reached one rank alone."""
        found = processes.highest(self._signal or int(self._stop_asked), self._device)
        self._stop_asked = found > 0
        self._signal = found if found > 1 else None

    def _one_batch(self, batch) -> bool:
        """Forward and backward, and whether the batch was the last of a step: then optimizer and eta table follow."""
        position, guard, clock = self.position, self._guard, self._gauges.clock
        step = position.step + 1
        learning_rate = self._engine.get_lr()[0]
        position.batch += 1
        guard.remember()
        try:
            with clock("forward"):
                loss = self._engine(batch)
            self._progress.count(self._step.whole.num_rows, self._step.whole.num_tokens)
            self._gauges.count(batch)
            if self._step.is_skipped:
                self._gauges.add(guard.reject(None, step, batch))
                return False
            loss_value, grad_norm = zero.update(self._engine, loss, self.config.optimizer.max_grad_norm, step, clock)
        except (NonFiniteGradient, zero.NonFiniteUpdate) as error:
            self._gauges.add(guard.reject(error, step, batch))
            return False
        guard.keep(is_whole_step=grad_norm is not None)
        self._gauges.add({**self._step.metrics, "loss": loss_value})
        if grad_norm is None:
            return False
        self._gauges.add({"grad_norm": grad_norm})
        self._step.commit()
        position.step = step
        self._tell(learning_rate)
        return True

    def _tell(self, learning_rate: float) -> None:
        position, metrics = self.position, {}
        if position.step % self.config.train.log_every == 0 or self.is_finished:
            metrics = {**self._gauges.take(position.step), "lr": learning_rate}
            metrics.update(epoch=position.epoch, num_skipped=position.num_skipped)
        self._progress.advance(metrics)
        if metrics and self._log is not None:
            metrics.update(self._progress.rates)
            self._log.write(position.step, metrics)
        self._call("on_step", position.step, metrics)

    def _evaluate_if_due(self) -> None:
        position, every = self.position, self.config.train.eval_every
        is_due = self.is_finished or (every is not None and position.step % every == 0)
        if self._dev_score is None or not is_due:
            return
        model = self._as_it_is()
        with _generator_untouched(), self._gauges.clock("eval"):
            score = processes.first_rank_only(lambda: float(self._dev_score(model)))
        # A NaN (all vectors alike) is no score: it is neither kept nor in the way of a later one.
        is_best = math.isfinite(score) and (position.best_score is None or score > position.best_score)
        if is_best:
            position.best_score, position.best_step = score, position.step
            weights = zero.full_precision_weights(self._model)
        position.num_scores_since_best = 0 if is_best else position.num_scores_since_best + 1
        if is_best:
            processes.first_rank_only(lambda: self._best.save(position.step, weights))
        if processes.is_first_rank():
            self._forget_old_weights()
            self._log.write(position.step, {"dev/score": score, "dev/best": position.best_score})
        self._progress.say(f"step {position.step}: dev {score:.2f}" + (", the best so far" if is_best else ""))
        if self._is_out_of_patience:
            self._progress.say(f"the last {position.num_scores_since_best} dev scores are no better (dev.patience)")
        self._call("on_eval", position.step, {"dev": score})

    def _as_it_is(self):
        """The model with the weights of now, whole. All ranks call it."""
        if self._whole_model is None:
            return self._model
        self._whole_model.load_state_dict(zero.full_precision_weights(self._model))
        return self._whole_model

    def _attack_if_due(self) -> None:
        """At an epoch's start: the training texts that an attack fools the model on, for an objective that asks."""
        plan, position = self._step.objective.needs.epoch_attack, self.position
        if plan is None:
            return
        from fastadv.engine.epoch_attack import texts_of_epoch

        model = self._as_it_is() if position.batch == 0 else None
        with _generator_untouched(), self._gauges.clock("attack"):
            pairs = texts_of_epoch(plan, position, model, self._data, self.run_folder, self.config.train.seed)
        self._data.variants.set_found(pairs)

    def _is_save_due(self) -> bool:
        every = self.config.train.save_every
        return every is not None and self.position.step % every == 0

    def _save(self) -> None:
        with self._gauges.clock("save"):
            extra_state = self._step.extra_state_dict()
            needed = self._best.entries(self.position.best_step) if processes.is_first_rank() else {}
            folder = save_checkpoint(self.run_folder, self._engine, extra_state, self.position, self._identity, needed)
        if processes.is_first_rank():
            self._forget_old_weights()
        self._call("on_save", self.position.step, folder)

    def _forget_old_weights(self) -> None:
        """Keeps the best weights so far, and those a checkpoint on disk needs as the best of its own past."""
        self._best.keep_only({self.position.best_step, *best_steps(self.run_folder)})

    def _close(self) -> None:
        """Closes what even a failed run must not leave open: the bar, the log, DeepSpeed's hooks on the parameters."""
        if self._progress is not None:
            self._progress.close()
        if self._log is not None:
            self._log.close()
        zero.destroy(self._engine)
        self._engine = self._progress = self._log = self._whole_model = None
        self._call("on_end")

    def _finish(self, weights: dict[str, Tensor]) -> None:
        """The chosen weights (``weights`` are the last) in float32, measured and exported by the first rank."""
        zero.make_whole(self._model, weights)
        processes.first_rank_only(lambda: self._export(weights))

    def _export(self, weights: dict[str, Tensor]) -> None:
        position, scores = self.position, {}
        if position.best_step is not None:
            weights = self._best.load(position.best_step)
            scores = {f"dev ({self.config.dev.data}), step {position.best_step}": position.best_score}
        self._model.float()
        self._model.load_state_dict(weights)
        self._model.eval()
        with _generator_untouched():
            table = self._comparison.measure_after(self.encoder)
        data = self._data
        card = model_card(self.config, self._config_text, len(data.text), position.step, scores, table, data.label_map)
        self._model.save_pretrained(self.run_folder / "model", card)
        self._comparison.write_report()

    def _call(self, name: str, *arguments) -> None:
        if processes.is_first_rank():
            for callback in self.callbacks:
                getattr(callback, name)(self, *arguments)


@contextmanager
def _generator_untouched():
    """What is measured on the way must not change the run: torch's generators end where they began."""
    devices = [torch.cuda.current_device()] if torch.cuda.is_available() else []
    with torch.random.fork_rng(devices=devices):
        yield
