"""Every decoder of bytes from outside, by name, with a defect that its fuzzer must find."""

from __future__ import annotations

from tests.fuzz import data, files, messages, mutators, programs, texts
from tests.fuzz.loading import Change
from tests.fuzz.target import Target

DECODING = "lockstep.base.decoding"
LINKS = "lockstep.storage.links"
CONTAINERS, PAYLOAD, PROGRAM = (
    "lockstep.storage.containers",
    "lockstep.storage.payload",
    "lockstep.protocol.programs.program",
)
DATASET, KEYS, DESCRIBE = "lockstep.storage.dataset", "lockstep.chain.keys", "lockstep.training.describe"
FIELDS = "lockstep.storage.fields"
NAMING = "lockstep.base.naming"
EVENTS, REQUESTS, SIGNED = "lockstep.chain.events", "lockstep.runtime.requests", "lockstep.market.signed"

TARGETS: dict[str, Target] = {
    "cbor": Target(
        {DECODING: ("from_cbor", "_require_size", "_scan_cbor", "_head")},
        texts.cbor,
        Change(
            DECODING, "if len(due) > MAX_DEPTH or items + due[-1] > most_items:", "if items + due[-1] > most_items:"
        ),
        mutators.often(mutators.cbor),
    ),
    "json": Target(
        {DECODING: ("from_json", "_decoded", "_require_size", "_scan_json", "_once", "_finite")},
        texts.json,
        Change(DECODING, "if depth > MAX_DEPTH or items > most_items:", "if items > most_items:"),
        mutators.often(mutators.jsons),
    ),
    "toml": Target(
        {DECODING: ("from_toml", "_decoded", "_require_size", "_finite", "_require_shallow")},
        texts.toml,
        Change(DECODING, "    _require_shallow(value)\n", ""),
        mutators.often(mutators.lines),
    ),
    "readers": Target(
        {
            DECODING: (
                "anything",
                "flag",
                "whole",
                "octets",
                "text",
                "one_of",
                "hexes",
                "account",
                "several",
                "mapping",
                "table",
                "either",
                "nothing",
                "_wrong",
            )
        },
        texts.readers,
        Change(DECODING, "if type(value) is not int:", "if not isinstance(value, int):"),
        mutators.often(mutators.jsons),
        8192,
    ),
    "spec": Target(
        {CONTAINERS: ("JobSpec.decode", "JobSpec.encode")},
        programs.spec,
        Change(CONTAINERS, "several(_PARAMETER, 1 << 16)", "lambda value, where: value"),
        mutators.often(mutators.cbor),
    ),
    "program": Target(
        {CONTAINERS: ("decode_program", "decode_parts", "_program_file", "_beside"), PROGRAM: ("Program.decode",)},
        programs.program,
        Change(CONTAINERS, 'not len(c["data"]) == size <= INLINE_BYTES', "size > INLINE_BYTES"),
        mutators.often(mutators.cbor),
    ),
    "header": Target(
        {PROGRAM: ("ProgramHeader.decode", "HeaderFields.decode", "HeaderFields.alias", "decode_entry")},
        programs.header,
        Change(PROGRAM, "if len(header) != f.length:", "if len(header) < f.length:"),
    ),
    "op": Target(
        {PROGRAM: ("Op.decode",)},
        programs.op,
        Change(PROGRAM, "if zero or at != len(data):", "if at != len(data):"),
    ),
    "statement": Target(
        {"lockstep.protocol.dispute.statement": ("Statement.decode",)},
        programs.statement,
        Change("lockstep.protocol.dispute.statement", "if len(data) != END:", "if len(data) < END:"),
    ),
    "manifest": Target(
        {
            LINKS: ("read_link",),
            DATASET: ("Manifest.from_node", "Manifest.__post_init__", "Manifest.rows_of", "_dtype_of"),
            FIELDS: ("RowForm.of", "RowForm.__post_init__", "RowField.__post_init__", "RowWindows.__post_init__"),
        },
        data.manifest,
        Change(LINKS, "if not isinstance(value, CID):", "if value is None:"),
        mutators.often(mutators.cbor),
    ),
    "dataset": Target(
        {DATASET: ("load_dataset", "_parts", "_tokens")},
        data.dataset,
        Change(DATASET, "if found != due:", "if found > due:"),
        mutators.often(mutators.cbor),
    ),
    "payload": Target(
        {
            PAYLOAD: (
                "load_payload",
                "load_carry",
                "_read_manifest",
                "_manifest",
                "_fetched",
                "decoded",
                "_read_int8",
                "_fits",
                "_lengths",
            )
        },
        data.payload,
        Change(
            PAYLOAD,
            "several(read_link, len(due)), **beside",
            "lambda found, at: [read_link(x, at) for x in found], **beside",
        ),
        mutators.often(mutators.sized_cbor),
    ),
    "checkpoint": Target(
        {PAYLOAD: ("load_checkpoint", "_manifest", "_present")},
        data.checkpoint,
        Change(LINKS, "if not isinstance(value, CID):", "if value is None:"),
        mutators.often(mutators.sized_cbor),
    ),
    "trace": Target(
        {"lockstep.market.replay": ("published_trace", "first_difference")},
        data.trace,
        Change(
            "lockstep.market.replay",
            "except LockstepError:\n        # Missing,",
            "except BlobMissing:\n        # Missing,",
        ),
    ),
    "dagpb": Target(
        {"lockstep.storage.dagpb": ()},
        data.dagpb,
        Change("lockstep.storage.dagpb", "while at < len(message) and shift < 63:", "while shift < 63:"),
    ),
    "unixfs": Target(
        {"lockstep.storage.unixfs": ("content_size", "read_chunks", "_read", "_of_size", "leaf_nodes", "_leaf_nodes")},
        data.unixfs,
        Change("lockstep.storage.unixfs", "if depth > MAX_DEPTH:", "if depth < 0:"),
    ),
    "cid": Target(
        {"lockstep.storage.cid": ("parse_cid", "cid_to_bytes", "cid_from_bytes", "verify_block", "_decode", "_parse")},
        data.cid,
        Change("lockstep.storage.cid", 'or decoded.base.name != "base32"', ""),
    ),
    "event": Target(
        {EVENTS: ("decode_log", "abi_values", "_value", "read_cid", "_is_cid")},
        messages.event,
        Change(
            EVENTS,
            "except Exception as failure:\n        raise ChainError",
            "except ValueError as failure:\n        raise ChainError",
        ),
    ),
    "signed claim": Target(
        {
            SIGNED: ("SignedClaim.parse", "SignedClaim.digest", "SignedClaim.signer", "SignedClaim.contradicts"),
            DECODING: ("whole", "hexes", "account", "table", "text"),
        },
        messages.signed_claim,
        Change(SIGNED, '"worker": account', '"worker": text()'),
        mutators.often(mutators.jsons),
        8192,
    ),
    "request": Target(
        {
            REQUESTS: (
                "RequestSignature.parse",
                "RequestSignature.check_body",
                "RequestSignature.check_time",
                "_hex",
                "_account",
                "_digest",
                "_expiry",
            )
        },
        messages.request,
        Change(REQUESTS, " and len(text) <= 19 and int(text) < 1 << 63", ""),
    ),
    "body": Target(
        {"coordinator.api": ("_parsed",)},
        messages.body,
        Change("coordinator.schema", '"^0x([0-9a-fA-F]{2})+$"', '"^0x[0-9a-fA-F]+$"'),
        mutators.often(mutators.headed(mutators.jsons)),
    ),
    "cursor": Target(
        {"coordinator.queries": ("_decode",)},
        messages.cursor,
        Change("coordinator.queries", "whole(-LARGEST_INTEGER, LARGEST_INTEGER)", "whole(-LARGEST_INTEGER, 1 << 80)"),
        mutators.often(mutators.base64_jsons),
    ),
    "export": Target(
        {"lockstep.runtime.guard.interchange": ("loads", "_entry")},
        files.export,
        Change(
            "lockstep.runtime.guard.interchange",
            "dict.fromkeys(WORDS, hexes(32, bare=True))",
            "dict.fromkeys(WORDS, text())",
        ),
        mutators.often(mutators.jsons),
    ),
    "deployment": Target(
        {"lockstep.chain.addresses": ("Addresses.loads",), DECODING: ("whole", "account", "table")},
        files.deployment,
        Change("lockstep.chain.addresses", '{"block": whole(0, U64)}', '{"block": lambda value, where: value}'),
        mutators.often(mutators.jsons),
    ),
    "keystore": Target(
        {KEYS: ("keystore_of", "_lowered"), DECODING: ("whole", "one_of", "hexes", "table")},
        files.keystore,
        Change(KEYS, ' or parameters.get("n", 2).bit_count() != 1', ""),
        mutators.often(mutators.jsons),
    ),
    "job": Target(
        {
            DESCRIBE: (
                "job_of",
                "_price",
                "_terms",
                "_term",
                "_whole",
                "_training",
                "_evaluation",
                "_offer",
                "_batch",
                "_model",
                "_config",
                "_value",
                "_table",
                "_integer",
                "Evaluation.__post_init__",
            ),
            NAMING: ("address_of",),
        },
        files.job,
        Change(
            DESCRIBE,
            "not isinstance(value, int) or isinstance(value, bool) or value < 0",
            "isinstance(value, bool) or value < 0",
        ),
        mutators.often(mutators.lines),
    ),
}
"""Every decoder of bytes from outside, by name."""
