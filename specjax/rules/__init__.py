"""Exactness: acceptance rules, pure functions of one row."""

from functools import partial

from specjax.rules import block as _block
from specjax.rules import token as _token
from specjax.rules.base import Terms, judge

token = partial(judge, _token.terms, _token.count)
block = partial(judge, _block.terms, _block.count)

__all__ = ["Terms", "block", "judge", "token"]
