"""The conformance kit: run it on your own target, drafter or rule.

    target, drafter = decoder(), Bigram(5, K=2)
    check_law(target, drafter, [[0, 1, 2, 3, 4, 0]])

Every check returns quietly or raises AssertionError with one sentence. Those
that judge by chance raise a false alarm once in 10^9 runs; products are kept
at the highest precision inside. Lossy rules are refused.
"""

from specjax.testing.draws import (
    check_arrays,
    check_coin,
    check_residual,
    check_tail,
)
from specjax.testing.exact import Case, cases, check_rule, enumerate_rule, tree
from specjax.testing.law import (
    ALARM,
    SETTINGS,
    Law,
    check_acceptance,
    check_law,
    chi_square,
    joint_law,
    sample,
    sampling_law,
)
from specjax.testing.pair import (
    Bigram,
    Bytes,
    Table,
    decoder,
    encoder_decoder,
)
from specjax.testing.state import (
    any_count,
    check_batch_invariance,
    check_capacity,
    check_poison,
    check_state,
    check_stops,
)

__all__ = [
    "ALARM",
    "SETTINGS",
    "Bigram",
    "Bytes",
    "Case",
    "Law",
    "Table",
    "any_count",
    "cases",
    "check_acceptance",
    "check_arrays",
    "check_batch_invariance",
    "check_capacity",
    "check_coin",
    "check_law",
    "check_poison",
    "check_residual",
    "check_rule",
    "check_state",
    "check_stops",
    "check_tail",
    "chi_square",
    "decoder",
    "encoder_decoder",
    "enumerate_rule",
    "joint_law",
    "sample",
    "sampling_law",
    "tree",
]
