"""The Secrets of a namespace as a mapping, for tests of who makes and deletes them."""

from collections.abc import Callable, Mapping

from fedstrata.errors import CertificateError


class Kept(dict[str, dict[str, bytes]]):
    """The Secrets of a namespace; those in `others` somebody else has made."""

    def __init__(self, secrets: Mapping[str, dict[str, bytes]] | None = None) -> None:
        super().__init__(secrets or {})
        self.others: set[str] = set()

    def ensure_namespace(self) -> None:
        """It is there."""

    def read(self, name: str) -> dict[str, bytes] | None:
        return self.get(name)

    def check_replaceable(self, name: str) -> None:
        if name in self.others:
            raise CertificateError(f"Secret {name} was not made here")

    def create(self, name: str, data: Mapping[str, bytes]) -> bool:
        if name in self:
            return False
        self[name] = dict(data)
        return True

    def write(self, name: str, data: Mapping[str, bytes]) -> bool:
        return self.change(name, lambda _: data)

    def change(self, name: str, changed: Callable[[dict[str, bytes]], Mapping[str, bytes]]) -> bool:
        self.check_replaceable(name)
        is_new = name not in self
        self[name] = dict(changed(self.get(name, {})))
        return is_new

    def delete(self, name: str) -> None:
        self.pop(name, None)

    def names(self) -> list[str]:
        return list(self)

    def made_here(self) -> list[str]:
        return [name for name in self if name not in self.others]
