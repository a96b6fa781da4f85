"""jinja2 as transformers sets it up: what our templates are compared with. Needs jinja2 3.1.6."""
import datetime
import json

import jinja2
import jinja2.ext
from jinja2.sandbox import ImmutableSandboxedEnvironment, SandboxedEnvironment

NOW = 1750075200  # 2025-06-16 12:00:00 UTC: the same day in every time zone from -11 to +11


def environment(mutable):
    # Kimi's template appends to a list, which only the mutable sandbox allows.
    kind = SandboxedEnvironment if mutable else ImmutableSandboxedEnvironment
    env = kind(trim_blocks=True, lstrip_blocks=True, extensions=[jinja2.ext.loopcontrols])

    def raise_exception(message):
        raise jinja2.exceptions.TemplateError(message)

    def tojson(x, ensure_ascii=False, indent=None, separators=None, sort_keys=False):
        return json.dumps(x, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)

    env.filters["tojson"] = tojson
    env.filters["from_json"] = json.loads
    env.globals["raise_exception"] = raise_exception
    env.globals["strftime_now"] = lambda f: datetime.datetime.fromtimestamp(NOW).strftime(f)
    return env


def is_mutable(name):
    return name.startswith("Kimi")


def outcome(template, variables):
    """{"expected": text}, or {"error": message} with "raised" where raise_exception was called."""
    try:
        return {"expected": template.render(**variables)}
    except Exception as error:  # noqa: BLE001: any failure of the template is an outcome
        return {"error": str(error), "raised": type(error) is jinja2.exceptions.TemplateError}
