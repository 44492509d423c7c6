"""MAPPO's critic: the value of the state for each agent, from the agent's own input and the global state."""

from __future__ import annotations

from jaxtyping import Array, Float

from omg.modules.agents import AgentSettings, RNNAgent


class CentralCritic(RNNAgent):
    """A recurrent network shared by all agents whose inputs are `[own input, state]`."""

    def __init__(self, own_size: int, state_size: int, settings: AgentSettings, key: Array):
        super().__init__(own_size + state_size, 1, 1, settings, key)

    def unroll_with(
        self,
        state: Float[Array, "time batch one_or_agent state"],
        inputs: Float[Array, "time batch agent own"],
        hidden: Float[Array, "batch agent hidden"],
    ) -> tuple[Float[Array, "time batch agent value"], Float[Array, "time batch agent hidden"]]:
        """The state's product with the first layer is computed once for all agents."""
        own = inputs.shape[-1]
        weight, bias = self.fc1.weight, self.fc1.bias
        return self.unroll_from(inputs @ weight[:own] + state @ weight[own:] + bias, hidden)
