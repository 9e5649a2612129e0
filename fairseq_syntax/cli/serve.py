"""Serve trained models over HTTP, with a page for trying them out.

Requests go to /translate, and those that arrive together are batched; / is the page. The server prints its address when
it is ready.

    fairseq-syntax serve plain=plain/checkpoint_best.pt PASCAL=pascal/checkpoint_best.pt --port 8000
"""

from argparse import Namespace

from fairseq_syntax.cli.arguments import (
    DATA,
    DEVICE,
    MISSING_PARSE,
    USER_DIR,
    batch_size,
    models,
    positive,
    seconds,
    source_parser,
)
from fairseq_syntax.cli.command import Command, Group, Option
from fairseq_syntax.cli.common import refuse
from fairseq_syntax.errors import imports_of
from fairseq_syntax.runtime.bounds import whole
from fairseq_syntax.runtime.files import read_lines
from fairseq_syntax.runtime.named_files import model_name, systems_by_name

ARGUMENTS = [
    models("the first is the default"),
    Option("--host", "address to listen on", default="127.0.0.1"),
    Option("--port", "port; 0 for any free port", type=whole(0, 65535), default=8000),
    Option(
        "--allowed-host NAME",
        "accept requests for this host name besides localhost, if a proxy forwards it; * for any. If --host is "
        "reachable from other machines, any name is accepted",
        action="append",
        default=[],
    ),
    Option("--examples FILE", "up to twelve sentences for the page (default: from the first model's data)"),
    DATA,
    DEVICE,
    USER_DIR,
    Group(
        "parser",
        *source_parser("parser for text and tokens; none: accept only CoNLL-U"),
        MISSING_PARSE,
        Option(
            "--parse-timeout S",
            "with --missing-parse neutral: seconds to wait for a parse (default: none)",
            type=seconds,
        ),
    ),
    Group(
        "limits",
        Option("--queue", "maximum number of waiting translations; more are answered 503", type=positive, default=1024),
        Option("--timeout S", "seconds until a request is answered 504", type=seconds, default=30.0),
        Option("--grace S", "seconds from SIGTERM to exit, nine tenths for answers", type=seconds, default=30.0),
        Option("--max-bytes", "maximum size of a request; others are answered 413", type=positive, default=1 << 20),
        batch_size(),
    ),
]


def needs_fairseq(args: Namespace) -> bool:
    """False if CTranslate2 runs all models."""
    from fairseq_syntax.use.opening import need_fairseq

    return need_fairseq(systems_by_name(args.model, model_name).values(), args.user_dir)


COMMAND = Command(__doc__, "use", ARGUMENTS, step=2, needs_fairseq=needs_fairseq)


def main(args: Namespace) -> None:
    with imports_of("serve"):
        from fairseq_syntax.use.serving.app import create_app
        from fairseq_syntax.use.serving.guard import allowed_hosts
        from fairseq_syntax.use.serving.served_models import examples_of, load_served, load_source
        from fairseq_syntax.use.serving.server import serve
        from fairseq_syntax.use.serving.service import Service

    if args.missing_parse == "error":
        refuse(args, ["parse_timeout"], "only applies to --missing-parse neutral")
    hosts = allowed_hosts(args.host, args.allowed_host)
    models = load_served(
        systems_by_name(args.model, model_name),
        data=args.data,
        device=args.device,
        batch_size=args.batch_size,
        missing_parse=args.missing_parse,
    )
    if args.examples:
        examples = [line for line in map(str.strip, read_lines(args.examples)) if line][:12]
    else:
        examples = examples_of(models[0])
    source = load_source(
        models,
        args.parser,
        args.lang,
        args.model_dir,
        missing_parse=args.missing_parse,
        parse_timeout=args.parse_timeout,
    )
    service = Service(models, source, capacity=args.queue, batch_size=args.batch_size)
    app = create_app(service, timeout=args.timeout, max_bytes=args.max_bytes, hosts=hosts, examples=examples)
    serve(app, args.host, args.port, grace=args.grace)
