"""Requests that schemathesis draws from the server's OpenAPI description, what it allows and what it does not.

``PYTHONPATH=. python tests/helpers/fuzzing.py --model MODEL --requests 10000`` starts a server of its own,
and prints how it answers and how much memory it has after each thousand.
"""

from __future__ import annotations

import argparse
import logging
import sys
from collections import Counter

REFUSALS = (400, 405, 413, 415, 422)
CHUNK = 1000
PATIENCE = 120.0  # seconds for an answer: a busy machine is not what is looked for


def fuzz(url: str, requests: int, number: int = 0) -> Counter[int]:
    """Send requests, a tenth of which the description allows; how often each status was answered.

    An answer that the description does not have, or a status that is neither 200 nor a refusal, is an AssertionError
    or schemathesis' own. That a CoNLL-U is a tree, the description cannot say, so some of what it allows is refused.

    Args:
        url: of the server, without a slash at its end
        number: requests of another number are other ones
    """
    import schemathesis
    from hypothesis import HealthCheck, Phase, given, seed, settings
    from schemathesis.generation import GenerationMode
    from schemathesis.specs.openapi.checks import positive_data_acceptance

    operation = schemathesis.openapi.from_url(f"{url}/openapi.json")["/translate"]["POST"]
    result: Counter[int] = Counter()
    allowed = requests // 10
    for mode, examples in ((GenerationMode.POSITIVE, allowed), (GenerationMode.NEGATIVE, requests - allowed)):

        @seed(number)
        @given(case=operation.as_strategy(generation_mode=mode))
        @settings(
            max_examples=examples,
            deadline=None,
            database=None,
            suppress_health_check=list(HealthCheck),
            phases=(Phase.generate,),
        )
        def check(case):
            answer = case.call(timeout=PATIENCE)
            result[answer.status_code] += 1
            assert answer.status_code in (200, *REFUSALS), (answer.status_code, answer.text[:500])
            assert "Traceback" not in answer.text
            if answer.status_code != 413:  # schemathesis does not know it for a refusal
                case.validate_response(answer, excluded_checks=[positive_data_acceptance])

        check()
    return result


def main() -> int:
    """Fuzz a server of a model; 1 where it answered otherwise than described."""
    from bench.serve import resident, server

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", required=True, help="a checkpoint or an exported folder")
    parser.add_argument("--requests", type=int, default=10_000)
    parser.add_argument("options", nargs="*", help="of fairseq-syntax serve, after --")
    args = parser.parse_args()
    logging.getLogger("urllib3").setLevel(logging.WARNING)  # it tells of every request where the root's level is lower
    total: Counter[int] = Counter()
    with server(args.model, *args.options) as (port, pid):
        print(f"{'requests':>9}  {'MB':>5}  answers", flush=True)
        while (done := sum(total.values())) < args.requests:
            total += fuzz(f"http://127.0.0.1:{port}", min(CHUNK, args.requests - done), done)
            told = ", ".join(f"{count} × {status}" for status, count in sorted(total.items()))
            print(f"{sum(total.values()):9}  {resident(pid):5.0f}  {told}", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
