"""--processes and --devices: where texts are encoded."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import argparse


def add_process_arguments(parser: argparse._ActionsContainer) -> None:
    """The two flags."""
    parser.add_argument("--processes", type=int, metavar="N",
                        help="encode texts in N processes on the processor (default: in this one)")  # fmt: skip
    parser.add_argument("--devices", nargs="+", metavar="DEVICE",
                        help="encode texts on these devices, one process each: cuda:0 cuda:1")  # fmt: skip


def chosen_devices(args: argparse.Namespace) -> tuple[list[str] | None, list[str]]:
    """The devices, or None for the usual one; and warnings.

    Raises:
        InputError: both flags, no process, or an unknown device.
    """
    from bixse.errors import InputError

    if args.processes is None and not args.devices:
        return None, []
    if args.processes is not None and args.devices:
        raise InputError(
            f"--processes: got {args.processes} beside --devices; expected one of the two; fix: leave one out"
        )
    if args.processes is not None and args.processes < 1:
        raise InputError(f"--processes: got {args.processes}; expected at least 1; fix: leave it out for one")
    from bixse.encoders.pool import check_devices, warn_of_too_many

    devices = check_devices(args.devices) if args.devices else ["cpu"] * args.processes
    return devices, warn_of_too_many(devices)
