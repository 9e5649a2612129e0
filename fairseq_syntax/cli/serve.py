"""``fairseq-syntax serve``: trained models behind HTTP, with a page to try them on."""

from __future__ import annotations

import argparse

from fairseq_syntax.cli.command import Command
from fairseq_syntax.cli.options import add_data, add_device, add_models, add_source_parser, positive, seconds
from fairseq_syntax.runtime.bounds import whole

COMMAND = Command(
    group="use",
    summary="serve trained models over HTTP, with a page to try them on",
    description="Load models once and translate what is posted to /translate; / is a page to try them on. "
    "Requests that come together are translated together. Prints its address when it is ready.",
    example="fairseq-syntax serve plain=plain/checkpoint_best.pt PASCAL=pascal/checkpoint_best.pt --port 8000",
    needs_fairseq=True,
    step=2,
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_models(parser, "the first is the default")
    parser.add_argument("--host", default="127.0.0.1", help="address to listen on")
    parser.add_argument("--port", type=whole(0, 65535), default=8000, metavar="N", help="0 for any that is free")
    parser.add_argument(
        "--allowed-host",
        action="append",
        default=[],
        metavar="NAME",
        help="a name under which browsers ask, beside localhost, where a proxy passes it on; * for any. "
        "With a --host that other machines reach, any is allowed",
    )
    parser.add_argument(
        "--examples",
        metavar="FILE",
        help="sentences to choose from on the page, one a line, at most twelve (default: of the first model's data)",
    )
    add_data(parser, "each model was")
    add_device(parser)
    source = parser.add_argument_group("parser")
    add_source_parser(source, "for text and tokens; none: only CoNLL-U", whose="the models'")
    source.add_argument(
        "--missing-parse",
        choices=("error", "neutral"),
        default="error",
        help="text that cannot be parsed: refuse it, or translate it without a parse",
    )
    source.add_argument(
        "--parse-timeout",
        type=seconds,
        metavar="S",
        help="with --missing-parse neutral: seconds after which a sentence goes without its parse (default: none)",
    )
    limits = parser.add_argument_group("limits")
    limits.add_argument(
        "--queue",
        type=positive,
        default=1024,
        metavar="N",
        help="translations that may wait; else 503",
    )
    limits.add_argument("--timeout", type=seconds, default=30.0, metavar="S", help="seconds for an answer; then 504")
    limits.add_argument(
        "--grace",
        type=seconds,
        default=30.0,
        metavar="S",
        help="seconds to end in at SIGTERM, of which nine tenths are for the answers outstanding",
    )
    limits.add_argument("--max-bytes", type=positive, default=1 << 20, metavar="N", help="of a request; then 413")
    limits.add_argument("--batch-size", type=positive, default=32, metavar="N", help="sentences translated at a time")


def main(args: argparse.Namespace) -> None:
    """Serve until told to stop."""
    import logging

    from fairseq_syntax.errors import SyntaxDataError
    from fairseq_syntax.runtime.named_files import model_name, systems_by_name

    logging.getLogger("fairseq").setLevel(logging.WARNING)
    try:
        from fairseq_syntax.use.serving.app import create_app
        from fairseq_syntax.use.serving.guard import allowed_hosts
        from fairseq_syntax.use.serving.server import serve
    except ImportError as error:
        raise SyntaxDataError(
            f"a package is missing: {error.name}", hint="pip install 'fairseq-syntax[serve]'"
        ) from error
    from fairseq_syntax.runtime.files import read_lines
    from fairseq_syntax.use.serving.models import examples_of, load_models, load_source
    from fairseq_syntax.use.serving.service import Service

    if args.parse_timeout is not None and args.missing_parse == "error":
        raise SyntaxDataError("--parse-timeout is for --missing-parse neutral")
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
