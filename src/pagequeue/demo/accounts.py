"""Accounts: the machine of the examples of `pagequeue.journal`, and of `pagequeue journal`."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable


class Accounts:
    """Balances by account. An entry is `{"to": name, "amount": int}`, and can have a `"from"`.

    Example:
        >>> with Journal("accounts", Accounts()) as journal:
        ...     journal.update(lambda balances: {"to": "ann", "amount": 5})
        0
    """

    version = 1

    def initial(self) -> dict[str, int]:
        """Return no accounts."""
        return {}

    def apply(self, balances: dict[str, int], entry: dict[str, object], timestamp_ns: int) -> None:
        """Change the balances in place."""
        del timestamp_ns
        amount = entry["amount"]
        assert isinstance(amount, int)
        for name, change in ((entry.get("from"), -amount), (entry["to"], amount)):
            if name is not None:
                balances[str(name)] = balances.get(str(name), 0) + change

    def dump(self, balances: dict[str, int]) -> Iterable[bytes]:
        """Return a line of JSON for each account."""
        for name in sorted(balances):
            yield json.dumps({name: balances[name]}).encode()

    def load(self, chunks: Iterable[bytes], version: int) -> dict[str, int]:
        """Return the balances of a snapshot."""
        del version
        balances: dict[str, int] = {}
        for chunk in chunks:
            balances.update(json.loads(chunk))
        return balances
