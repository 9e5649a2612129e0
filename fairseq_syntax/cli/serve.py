"""``fairseq-syntax serve``: trained models over HTTP, with a page for trying them out."""

from __future__ import annotations

import argparse

from fairseq_syntax.cli.command import Command
from fairseq_syntax.cli.options import add_data, add_device, add_models, add_source_parser, positive, refuse, seconds
from fairseq_syntax.errors import SyntaxDataError
from fairseq_syntax.runtime.bounds import whole
from fairseq_syntax.runtime.files import read_lines
from fairseq_syntax.runtime.named_files import model_name, systems_by_name

COMMAND = Command(
    group="use",
    summary="serve trained models over HTTP, with a page for trying them out",
    description="Load models and translate requests to /translate; / is a page for trying out the models. "
    "Simultaneous requests are batched. The server prints its address when it is ready.",
    example="fairseq-syntax serve plain=plain/checkpoint_best.pt PASCAL=pascal/checkpoint_best.pt --port 8000",
    needs_fairseq=True,
    step=2,
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_models(parser, "the first is the default")
    parser.add_argument("--host", default="127.0.0.1", help="address to listen on")
    parser.add_argument("--port", type=whole(0, 65535), default=8000, help="port; 0 for any free port")
    parser.add_argument(
        "--allowed-host",
        action="append",
        default=[],
        metavar="NAME",
        help="accept requests for this host name besides localhost, if a proxy forwards it; * for any. If "
        "--host is reachable from other machines, any name is accepted",
    )
    parser.add_argument(
        "--examples",
        metavar="FILE",
        help="example sentences for the page, one per line, at most twelve (default: from the first model's data)",
    )
    add_data(parser, "each model was")
    add_device(parser)
    source = parser.add_argument_group("parser")
    add_source_parser(source, "parser for text and tokens; none: accept only CoNLL-U", whose="the models'")
    source.add_argument(
        "--missing-parse",
        choices=("error", "neutral"),
        default="error",
        help="for text that cannot be parsed: return an error, or translate it without a parse",
    )
    source.add_argument(
        "--parse-timeout",
        type=seconds,
        metavar="S",
        help="with --missing-parse neutral: seconds until a sentence is translated without its parse (default: none)",
    )
    limits = parser.add_argument_group("limits")
    limits.add_argument(
        "--queue", type=positive, default=1024, help="maximum number of waiting translations; more are answered 503"
    )
    limits.add_argument(
        "--timeout", type=seconds, default=30.0, metavar="S", help="seconds until a request is answered 504"
    )
    limits.add_argument(
        "--grace",
        type=seconds,
        default=30.0,
        metavar="S",
        help="seconds until exit after SIGTERM, nine tenths of them for pending answers",
    )
    limits.add_argument(
        "--max-bytes", type=positive, default=1 << 20, help="maximum size of a request; larger ones are answered 413"
    )
    limits.add_argument("--batch-size", type=positive, default=32, help="sentences per batch")


def main(args: argparse.Namespace) -> None:
    try:
        from fairseq_syntax.use.serving.app import create_app
        from fairseq_syntax.use.serving.guard import allowed_hosts
        from fairseq_syntax.use.serving.server import serve
    except ImportError as error:
        raise SyntaxDataError(
            f"a package is missing: {error.name}", hint="pip install 'fairseq-syntax[serve]'"
        ) from error
    from fairseq_syntax.use.serving.models import examples_of, load_models, load_source
    from fairseq_syntax.use.serving.service import Service

    if args.missing_parse == "error":
        refuse(args, add_arguments, ["parse_timeout"], "only applies to --missing-parse neutral")
    hosts = allowed_hosts(args.host, args.allowed_host)
    models = load_models(
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
    options = {"timeout": args.timeout, "max_bytes": args.max_bytes, "hosts": hosts, "examples": examples}
    app = create_app(service, **options)
    serve(app, args.host, args.port, grace=args.grace)
