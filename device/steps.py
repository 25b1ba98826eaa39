"""Run a training in which the method's own code takes each local step."""

from collections.abc import Callable, Iterator
from dataclasses import replace

import torch

from device.evaluation import evaluate
from device.last_layer import OutputsWithFeatures
from device.optimisers import State, dense, flat, learning_rate
from device.training import (
    Batch,
    Descent,
    LocalResult,
    Losses,
    TrainingJob,
    batches,
    gradients_of,
    mean_loss,
    outputs_in_training,
)
from fedstrata.errors import PluginError
from fedstrata.methods import Measurement, Trained
from fedstrata.methods.work import Objective
from fedstrata.tensors import Flat


class LocalSteps:
    """Implement `fedstrata.methods.Steps`, with which a method controls each local step.

    A method may use other gradients than `train` in `device.training`. If each step uses the gradient of the next batch
    at the present weights, as `train` does, the result has the same bits as the result of `train`.
    """

    def __init__(self, job: TrainingJob) -> None:
        self._job = job
        self._trainable = job.model.trainable
        self._tensors = job.model.tensors(job.start)
        self._leaves = [self._tensors[name] for name in self._trainable.names]
        self._descent = Descent(job, self._leaves)
        self._outputs = outputs_in_training(job)
        self.losses = Losses()
        self.number = job.number
        self.moves = 0

    @property
    def learning_rate(self) -> float:
        """The learning rate of the experiment's optimiser in this round."""
        return learning_rate(self._job.training, self._job.global_round)

    @property
    def weights(self) -> torch.Tensor:
        """A copy of the weights after the steps so far, shape (trainable.size,)."""
        return torch.cat([leaf.reshape(-1) for leaf in self._leaves])

    def batches(self, number: int | None = None) -> Iterator[Batch]:
        """Yield the batches of the training, one per local step. Another `number` gives another random order of
        the examples.
        """
        return batches(self._job if number is None else replace(self._job, number=number))

    def gradient(self, weights: torch.Tensor, batch: Batch, objective: Objective | None = None) -> torch.Tensor:
        """Return the gradient of a batch's mean loss at these weights, shape (trainable.size,). If the method has an
        objective, return the gradient of the objective.
        """
        leaves = [part.requires_grad_() for part in self._split(weights)]
        tensors = {**self._tensors, **dict(zip(self._trainable.names, leaves, strict=True))}
        if objective is None:
            loss = minimised = mean_loss(self._job, self._outputs, tensors, batch)
        else:
            outputs = OutputsWithFeatures(self._job.model, self._outputs)
            loss = mean_loss(self._job, outputs, tensors, batch)
            minimised = objective(loss, outputs.last_pass(batch[-1]))
        self.losses.add(loss, len(batch[-1]))
        gradients = gradients_of(minimised, leaves)
        return torch.cat([dense(part).reshape(-1) for part in gradients])

    def features(self, weights: Flat) -> Callable[[Batch], torch.Tensor]:
        """Return a function that takes a batch, and returns the features of the batch with these weights. They are
        computed as for a measurement.
        """
        model, tensors = self._job.model, self._job.model.tensors(weights)
        outputs = OutputsWithFeatures(model, model.outputs)

        @torch.no_grad()
        def features(batch: Batch) -> torch.Tensor:
            inputs, more, _ = batch
            return outputs.features_of(tensors, inputs, **more)

        return features

    def move(self, gradient: torch.Tensor) -> None:
        """Change the weights by one step of the experiment's optimiser, with this gradient."""
        self._descent.step(self._split(gradient))
        self.moves += 1

    def trained(self) -> Trained:
        """Return the result of the steps so far. Raises PluginError if there was no step."""
        job = self._job
        if not self.moves:
            raise PluginError("a training without steps has no result: call `move` before `trained`")
        result = LocalResult(
            weights=flat(list(self._tensors.values())),
            train_loss=self.losses.mean(),
            steps=self.moves,
            evaluation=None if job.held_out is None else evaluate(job.model, job.start, job.held_out, job.task),
        )
        return trained_of(result, job)

    def state(self) -> State:
        """Return the optimiser's state. If the experiment does not keep this state, return an empty mapping."""
        return self._descent.state() if self._job.training.optimiser.state == "kept" else {}

    def _split(self, vector: torch.Tensor) -> list[torch.Tensor]:
        """Return a vector as tensors with the shapes of the leaves. They are copies in memory that torch allocates, so
        that their alignment is always the same.
        """
        if vector.shape != (self._trainable.size,) or vector.dtype != torch.float32:
            told = f"{vector.dtype} {tuple(vector.shape)}"
            raise PluginError(f"steps got a vector of {told}; give torch.float32 ({self._trainable.size},)")
        parts = torch.split(vector.detach(), [leaf.numel() for leaf in self._leaves])
        return [part.clone().reshape(leaf.shape) for part, leaf in zip(parts, self._leaves, strict=True)]


def trained_of(result: LocalResult, job: TrainingJob) -> Trained:
    """Return the result of a training job in the form that methods receive."""
    evaluation = result.evaluation
    return Trained(
        weights=result.weights,
        train_loss=result.train_loss,
        measured=None if evaluation is None else Measurement(**evaluation._asdict()),
        steps=result.steps,
        learning_rate=learning_rate(job.training, job.global_round),
    )
