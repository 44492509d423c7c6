"""Learners by name (`learner`)."""

from omg.learners.base import Learner, LearnerSettings, LearnerState
from omg.learners.coma_learner import COMALearner, COMALearnerSettings
from omg.learners.q_learner import QLearner, QLearnerSettings
from omg.learners.qtran_learner import QTranLearner, QTranLearnerSettings

REGISTRY: dict[str, type[Learner]] = {
    "q_learner": QLearner,
    "qtran_learner": QTranLearner,
    "coma_learner": COMALearner,
}

__all__ = [
    "REGISTRY",
    "COMALearner",
    "COMALearnerSettings",
    "Learner",
    "LearnerSettings",
    "LearnerState",
    "QLearner",
    "QLearnerSettings",
    "QTranLearner",
    "QTranLearnerSettings",
]
