"""JavaScript regular expressions without flags: is a text one, and does a text match it.

Patterns come from manifests and MCP servers, texts from models, so neither may hang the process. A backtracking
matcher can be made to take longer than the universe lasts by thirty characters. Patterns without back references
therefore run on a finite automaton of ours (`automaton`), whose time grows with the text; `regress` runs the few
that have them, within a bound on what it could cost. What is too costly raises `RegexTooCostly`, depends on
pattern and text alone, and so is the same on every machine.
"""

from protocol.js_regex.automaton import RegexTooCostly
from protocol.js_regex.regex import JsRegex, js_regex
from protocol.js_regex.syntax import RegexInvalid

__all__ = ["JsRegex", "RegexInvalid", "RegexTooCostly", "js_regex"]
