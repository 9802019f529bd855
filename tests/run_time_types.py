"""Checks types and shapes at run time where MINRL_CHECK_TYPES is set, from the first import of minrl on.

It takes a fifth of the tests' time: `.ci/release` alone sets it, for the algorithm's own tests.
"""

import os

STATES_SHAPES = [
    "minrl.advantages",
    "minrl.algorithms",
    "minrl.batch",
    "minrl.engines.torch_engine",
    "minrl.models.logprobs",
    "minrl.losses",
    "minrl.policy",
    "minrl.tracking.metrics",
    "minrl.tracking.diagnostics",
    "minrl.models.scoring",
    "minrl.update",
]

if os.environ.get("MINRL_CHECK_TYPES"):
    from beartype import BeartypeConf
    from beartype.claw import beartype_package
    from jaxtyping import install_import_hook

    install_import_hook(STATES_SHAPES, "beartype.beartype")
    # Where jaxtyping does not, at a tenth of its cost.
    # An int is a float, as for mypy; the settings' groups take text too and convert it.
    conf = BeartypeConf(claw_is_pep526=False, is_pep484_tower=True, claw_skip_package_names=("minrl.config",))
    beartype_package("minrl", conf=conf)
