"""Learners by name (`learner`), and those of pre-training (`am_learner`)."""

from typing import Any

from omg.learners.am_learner import AMLearner
from omg.learners.base import Learner, LearnerState
from omg.learners.coma_learner import COMALearner
from omg.learners.hop_learner import HopLearner
from omg.learners.influence_learner import InfluenceLearner
from omg.learners.lola_learner import LOLALearner
from omg.learners.omg_learner import OMGLearner
from omg.learners.ppo_learner import PPOLearner
from omg.learners.pqn_learner import PQNLearner
from omg.learners.q_learner import QLearner
from omg.learners.q_learner_4am import QLearner4AM
from omg.learners.qtran_learner import QTranLearner

REGISTRY: dict[str, type[Learner]] = {
    "q_learner": QLearner,
    "qtran_learner": QTranLearner,
    "coma_learner": COMALearner,
    "q_learner_4am": QLearner4AM,
    "omg_learner": OMGLearner,
    "ppo_learner": PPOLearner,
    "pqn_learner": PQNLearner,
    "hop_learner": HopLearner,
    "influence_learner": InfluenceLearner,
    "lola_learner": LOLALearner,
}

AM_REGISTRY: dict[str, Any] = {"am_learner": AMLearner}

__all__ = ["AM_REGISTRY", "REGISTRY", "AMLearner", "Learner", "LearnerState"]
