"""The recurrent agent for frames: two convolutions turn them into features, which enter in their place."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from omg.components.layers import Linear
from omg.modules.agents.rnn_agent import AgentSettings, Layout, RNNAgent
from omg.utils.settings import setting


@dataclass(frozen=True)
class ConvSettings(AgentSettings):
    conv_channels: int = setting(
        16, "conv_rnn: channels of the first convolution; the second has twice as many", above=0
    )
    conv_stride: int = setting(
        1, "conv_rnn: step of the first convolution in pixels (8 for frames that are not shrunk)", above=0
    )


class Frame(eqx.Module):
    """The place and shape of a frame in an observation, and its convolutions."""

    start: int = eqx.field(static=True)
    shape: tuple[int, ...] = eqx.field(static=True)
    stride: int = eqx.field(static=True)
    first: Linear
    second: Linear

    def __init__(self, start: int, shape: tuple[int, ...], settings: ConvSettings, key: Array):
        self.start, self.shape, self.stride = start, shape, settings.conv_stride
        k_first, k_second = jax.random.split(key)
        channels, gain = settings.conv_channels, math.sqrt(2) if settings.init == "orthogonal" else None
        self.first = Linear(self.patch**2 * shape[-1], channels, k_first, gain)
        self.second = Linear(3 * 3 * channels, 2 * channels, k_second, gain)

    @property
    def patch(self) -> int:
        """The height and width of the first convolution's neighbourhoods: no pixel is skipped."""
        return max(3, self.stride)

    @property
    def size(self) -> int:
        return math.prod(self.shape)

    @property
    def n_features(self) -> int:
        height, width = (-(-n // self.stride) for n in self.shape[:2])
        return height * width * self.second.bias.shape[-1]

    def features(self, inputs: Float[Array, "*rows input"]) -> Float[Array, "*rows feature"]:
        rows = inputs.shape[:-1]
        pixels = inputs[..., self.start : self.start + self.size].reshape(*rows, *self.shape)
        x = jax.nn.relu(self.first(neighbourhoods(pixels, self.patch, self.stride)))
        x = jax.nn.relu(self.second(neighbourhoods(x, 3, 1)))
        return x.reshape(*rows, -1)


class ConvRNNAgent(RNNAgent):
    """Every component of the observation with three axes (height, width, channels) is a frame."""

    Settings: ClassVar[type[AgentSettings]] = ConvSettings

    frames: list[Frame]

    def __init__(
        self, input_size: int, n_actions: int, n_agents: int, settings: ConvSettings, key: Array, layout: Layout
    ):
        k_agent, k_frames = jax.random.split(key)
        places = frames_in(layout)
        keys = jax.random.split(k_frames, len(places))
        self.frames = [Frame(start, shape, settings, k) for (start, shape), k in zip(places, keys, strict=True)]
        more = sum(frame.n_features - frame.size for frame in self.frames)
        super().__init__(input_size + more, n_actions, n_agents, settings, k_agent)

    def encode(self, inputs: Float[Array, "*rows input"]) -> Float[Array, "*rows encoded"]:
        """The inputs with features in the place of frames."""
        columns, at = [], 0
        for frame in self.frames:
            columns += [inputs[..., at : frame.start], frame.features(inputs)]
            at = frame.start + frame.size
        return jnp.concatenate([*columns, inputs[..., at:]], -1)

    def step(self, inputs, hidden, seats=None):
        return super().step(self.encode(inputs), hidden, seats)

    def unroll(self, inputs, hidden):
        return super().unroll(self.encode(inputs), hidden)

    def consider(self, own, latents, hidden, horizon, present=None):
        return super().consider(self.encode(own), latents, hidden, horizon, present)


def frames_in(layout: Layout) -> list[tuple[int, tuple[int, ...]]]:
    """The frames in an observation: where each begins, and its shape."""
    found: list[tuple[int, tuple[int, ...]]] = []
    at = 0
    for _, shape in layout:
        if len(shape) == 3:
            found.append((at, shape))
        at += math.prod(shape)
    return found


def neighbourhoods(
    x: Float[Array, "*rows height width channel"], size: int, stride: int
) -> Float[Array, "*rows high wide patch"]:
    """Each `size` × `size` neighbourhood as one vector, every `stride` pixels; zeros beyond the border.

    A convolution is this and one matrix product, which stays one when networks of many seeds are evaluated at once.
    """
    out = [-(-n // stride) for n in x.shape[-3:-1]]
    missing = [max((n - 1) * stride + size - have, 0) for n, have in zip(out, x.shape[-3:-1], strict=True)]
    around = [(n // 2, n - n // 2) for n in missing]
    x = jnp.pad(x, [(0, 0)] * (x.ndim - 3) + [*around, (0, 0)])
    last = [(n - 1) * stride + 1 for n in out]
    return jnp.concatenate(
        [x[..., i : i + last[0] : stride, j : j + last[1] : stride, :] for i in range(size) for j in range(size)],
        -1,
    )
