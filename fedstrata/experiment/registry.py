"""Find the class that a section of the experiment file names, such as a method: a built-in class, or a class of the
user.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from importlib import import_module
from typing import Any, Generic, TypeVar

from pydantic import ValidationError

from fedstrata.errors import ExperimentError, PluginError
from fedstrata.experiment.error_lines import nearest, one_line, plain_name
from fedstrata.experiment.sections import PLUGIN, Settings
from fedstrata.plugins import guarded, load_plugin, or_failed

Kind = TypeVar("Kind")
Chosen = TypeVar("Chosen", bound=Settings)


@dataclass(frozen=True, kw_only=True)
class Classes(Generic[Kind]):
    """Hold the built-in classes of one section, such as `method`, and load classes of the user."""

    section: str
    base: type[Kind]
    known: Mapping[str, str]  # by name `module:Class`; the module is imported when the name is first used
    elsewhere: Mapping[str, str] = field(default_factory=dict)  # hints for names that other sections of the file set
    tag: str = "name"  # key of the section that names the class

    def kind(self, name: str, key: str = "") -> type[Kind]:
        """Return the built-in class with this name or, for `module:Class`, the user's own class. `key` is the key of
        the experiment file, for messages; by default it is the section.

        Raises:
            ExperimentError: no class has this name, as in `no method is called 'fedavgg'`.
            PluginError: the user's class is missing, or is not a subclass of the required class.
        """
        if name in self.known:
            module, _, found = self.known[name].partition(":")
            known: type[Kind] = getattr(import_module(module), found)
            return known
        what = self.section
        if not PLUGIN.match(name):
            if (hint := self.elsewhere.get(plain_name(name))) is not None:
                raise ExperimentError(f"{key or what}.{self.tag}: no {what} is called {name!r:.80}; {hint}")
            raise ExperimentError(
                f"{key or what}.{self.tag}: no {what} is called {name!r:.80}; {nearest(name, self.known)}choose "
                f"{', '.join(self.known)}, or your own as module:Class"
            )
        own: Any = load_plugin(name, what)
        room = f"fedstrata.{what}s"
        if not (isinstance(own, type) and issubclass(own, self.base)):
            raise PluginError(f"{what} {name} must be a subclass of {room}.{self.base.__name__}, not {own!r:.80}")
        return own


@dataclass(frozen=True, kw_only=True)
class Registry(Classes[Kind], Generic[Kind, Chosen]):
    """Hold the classes of one section, which have options."""

    options: type[Chosen]
    default: str

    def settings(self, section: Any, key: str = "") -> Chosen:
        """Check a section (a name, a mapping, or None for the default name) and return its settings. For `key`, see
        `kind`.

        Raises:
            ExperimentError: no class has the name, or its options refuse a key or a value.
        """
        if isinstance(section, self.options):
            return section
        if isinstance(section, str) or section is None:
            section = {"name": section or self.default}
        if not isinstance(section, Mapping):
            raise ExperimentError(
                f"{key or self.section}: must be a name, or a mapping with the name and its options, not "
                f"{section!r:.80}"
            )
        section = {"name": self.default, **section}
        kind: Any = self.kind(str(section["name"]), key)
        options = getattr(kind, "Options", None)
        if not (isinstance(options, type) and issubclass(options, self.options)):
            of = f"fedstrata.{self.section}s.{self.options.__name__}"
            raise PluginError(f"{self.section} {section['name']}: Options must be a subclass of {of}")
        known = ", ".join(sorted(set(kind.Options.model_fields) - {"name"})) or "none"
        try:
            checked: Chosen = kind.Options.model_validate(section)
        except ValidationError as error:
            unknown = f"{key or self.section} {section['name']} has no such option; its options are: {known}"
            raise ExperimentError(one_line(error, lambda _: unknown, key or self.section)) from None
        return checked

    def made(self, name: str, make: Callable[[Any], Kind]) -> Kind:
        """Call `make`, which constructs an object of the class `name`, and return the object. For a user's class, a
        failure of `make`, or later of a function of the object, raises PluginError.
        """
        kind = self.kind(name)
        if name in self.known:
            return make(kind)
        with or_failed(f"{self.section} {name} failed with"):
            return make(guarded(f"{self.section} {name}", kind, self.base))
