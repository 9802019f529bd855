"""Checks types and shapes at run time where MINRL_CHECK_TYPES is set, from the first import of minrl on.

It takes a fifth of the tests' time: `.ci/release` alone sets it, for the algorithm's own tests.
"""

import os

STATES_SHAPES = """advantages algorithms batch engines.torch_engine models.logprobs losses policy tracking.metrics
    tracking.diagnostics models.scoring update"""

if os.environ.get("MINRL_CHECK_TYPES"):
    from beartype import BeartypeConf
    from beartype.claw import beartype_package
    from jaxtyping import install_import_hook

    install_import_hook([f"minrl.{name}" for name in STATES_SHAPES.split()], "beartype.beartype")
    # Where jaxtyping does not, at a tenth of its cost.
    # An int is a float, as for mypy; the settings' groups take text too and convert it.
    conf = BeartypeConf(claw_is_pep526=False, is_pep484_tower=True, claw_skip_package_names=("minrl.config",))
    beartype_package("minrl", conf=conf)
