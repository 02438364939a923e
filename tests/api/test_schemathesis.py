# SPDX-License-Identifier: Apache-2.0
"""schemathesis asks every operation of the three documents, with data they allow and data they do
not: never a server error, and every answer is one that its document knows.

The check that data of the right form is accepted is left out: a schema says neither that a lease
ends after it starts nor which host there is, and such requests are 400.
"""

from __future__ import annotations

import os
from typing import Any

import hypothesis
import pytest
import schemathesis
from schemathesis.checks import CHECKS, load_all_checks
from schemathesis.config import SchemathesisConfig
from schemathesis.generation import GenerationMode

from holdfast.api import versions
from holdfast.api.routes import table
from tests.api.house import House

#: Of each operation: two minutes for all on both databases; `make soak` has time for more.
EXAMPLES = int(os.environ.get("SCHEMATHESIS_EXAMPLES", "0")) or 60
DOCUMENTED = [
    (contract.prefix, route.method, route.path)
    for contract in versions.CONTRACTS
    for route in table(None)  # type: ignore[arg-type]  # only what the table says is looked at
    if f"{route.path}/".startswith(f"{contract.prefix}/")
]
#: As a parameter such a word makes the path of another route.
FIXED = {word for _, _, path in DOCUMENTED for word in path.split("/")}
load_all_checks()
LEFT_OUT = [CHECKS.get_one("positive_data_acceptance")]
#: What refuses wrong data; schemathesis does not know that a body may be too large (413).
REFUSALS = [400, 401, 403, 404, 405, 406, 409, 413, 415, 429]
CONFIG = SchemathesisConfig.from_dict(
    {"checks": {"negative_data_rejection": {"expected-statuses": REFUSALS}}}
)


@pytest.fixture(scope="module")
def asked(on_server: House) -> dict[str, Any]:
    """By prefix: a document of a house without passwords, whose callers come from its machine."""

    def app(environ: dict[str, Any], start: Any) -> Any:
        return on_server.app({**environ, "REMOTE_ADDR": "127.0.0.1"}, start)

    return {
        contract.prefix: schemathesis.openapi.from_wsgi(
            f"{contract.prefix}/openapi.json", app, config=CONFIG
        )
        for contract in versions.CONTRACTS
    }


@pytest.mark.slow("asks each of a hundred operations several times")
@pytest.mark.parametrize(("prefix", "method", "path"), DOCUMENTED)
def test_every_answer_is_in_the_document(
    asked: dict[str, Any], prefix: str, method: str, path: str
) -> None:
    operation = asked[prefix][path][method]
    cases = operation.as_strategy(generation_mode=GenerationMode.POSITIVE)
    if operation.path_parameters or operation.query or operation.body:
        cases |= operation.as_strategy(generation_mode=GenerationMode.NEGATIVE)

    @hypothesis.settings(
        max_examples=EXAMPLES,
        deadline=None,
        derandomize="SCHEMATHESIS_EXAMPLES" not in os.environ,
        database=None,
        suppress_health_check=list(hypothesis.HealthCheck),
    )
    @hypothesis.given(case=cases)
    def ask(case: Any) -> None:
        hypothesis.assume(FIXED.isdisjoint(map(str, (case.path_parameters or {}).values())))
        case.call_and_validate(excluded_checks=LEFT_OUT)

    ask()
