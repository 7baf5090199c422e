"""What ``plans --json`` prints, which no record has the shape of."""

from __future__ import annotations

from schemas.records import obj

TEXT, WHOLE, SHARE, FLAG = {"type": "string"}, {"type": "integer"}, {"type": "number"}, {"type": "boolean"}
MAYBE_WHOLE = {"type": ["integer", "null"]}
TEXTS = {"type": "array", "items": TEXT}
DIMS = {"type": "object", "additionalProperties": WHOLE}


def _is(schema, description):
    return {**schema, "description": description}


def _list(name, description):
    return {"type": "array", "items": {"$ref": f"#/$defs/{name}"}, "description": description}


PHASE = {"type": "string", "enum": ["forward", "loss", "backward", "recompute"]}

PLANS = obj(
    "",
    {
        "switched_on": _is({"$ref": "#/$defs/SwitchedOn"}, "What the environment switches on."),
        "plans": _list("OfferedPlan", "Each plan offered, the largest saving first."),
        "insights": _list("Insight", "Each cluster of places that are alike."),
        "other_ranks": _list("Rank", "Each further rank that trains along; all else is the first rank's."),
        "problems": _is(TEXTS, "What is wrong with what is switched on, a sentence each."),
        "presets": _is(
            {"type": "object", "additionalProperties": TEXTS}, "The configs that go by a name, each as its choices."
        ),
        "dims": _is(DIMS, "The dimensions that savings are evaluated at."),
        "first_batch_dims": _is(DIMS, "The dimensions of the first batch."),
        "aliases": _is(
            {"type": "object", "additionalProperties": TEXTS}, "The training system's names of each dimension."
        ),
        "device": _is(obj("", {"kind": _is(TEXT, "cpu or cuda."), "name": _is(TEXT, "Its name.")}), "Where it trains."),
        "versions": _is({"type": "object", "additionalProperties": TEXT}, "With what."),
        "command": _is(TEXT, "A command to go on with."),
        "peak": _is({"$ref": "#/$defs/Peak"}, "With --peak, --picture or --memory-limit only."),
    },
    optional=("peak",),
)

PLANS_DEFINITIONS = {
    "SwitchedOn": obj(
        "What the environment switches on.",
        {
            "on": _is(FLAG, "Whether anything is."),
            "summary": _is(TEXT, "The same in a line."),
            "config": _is(DIMS, "How many occurrences each choice is asked for, -1 for all."),
            "unknown": _is(TEXTS, "What the model does not offer."),
        },
    ),
    "OfferedPlan": obj(
        "A plan.",
        {
            "plan": _is(WHOLE, "Its number, from 1."),
            "status": _is({"type": "string", "enum": ["ON", "OFF"]}, "Whether it is switched on."),
            "config": _is(TEXT, "What to switch on."),
            "label": _is(TEXT, "The plan in a few words."),
            "option": _is(TEXT, "How it is recomputed, in the training system's word."),
            "frequency": _is(WHOLE, "How many places it covers."),
            "counts": _is(FLAG, "Whether it can be switched on for some of them only."),
            "saving_bytes": _is(
                MAYBE_WHOLE, "What it saves of what is kept for backward; null where a dimension is unknown. In bytes."
            ),
            "saving_symbolic": _is(TEXT, "The same as an expression in the dimensions."),
            "saving_bytes_by_batch": _is(
                {"type": "object", "additionalProperties": MAYBE_WHOLE}, "The same at other batches. In bytes."
            ),
            "stated_bytes": _is(MAYBE_WHOLE, "What the training system states. In bytes."),
            "is_corrected": _is(FLAG, "Whether it states another figure."),
            "requested_count": _is(
                MAYBE_WHOLE, "How many occurrences are asked for, -1 for all; null where it is off."
            ),
            "recomputed_count": _is(WHOLE, "At how many places it is recomputed."),
        },
    ),
    "Insight": obj(
        "A cluster of places that are alike.",
        {
            "frequency": _is(WHOLE, "How many places."),
            "options": _list("Choice", "Ways to recompute them, mutually exclusive, in the order of preference."),
        },
    ),
    "Choice": obj(
        "A way to recompute the nodes of a cluster.",
        {
            "config": _is(TEXT, "What to switch on."),
            "option": _is(TEXT, "How it is recomputed."),
            "requested_count": _is(MAYBE_WHOLE, "How many occurrences are asked for; null where it is off."),
            "saving_bytes": _is(MAYBE_WHOLE, "What it saves over all nodes. In bytes."),
            "activations": _list("Activation", "What is not kept then."),
        },
    ),
    "Activation": obj(
        "An output that is not kept.",
        {
            "output": _is(WHOLE, "Which output of the node."),
            "shape": _is(TEXTS, "Its sizes, as expressions in the dimensions."),
            "element_bytes": _is(WHOLE, "Bytes of one element."),
            "saved_percent": _is(SHARE, "Which share of it is saved."),
            "reuse_frequency": _is(WHOLE, "In how many nodes it lies in a buffer that another output has left."),
            "saving_bytes": _is(MAYBE_WHOLE, "What it saves over all nodes. In bytes."),
        },
    ),
    "Rank": obj(
        "A further rank.",
        {
            "rank": _is(WHOLE, "Its number, from 1."),
            "dims": _is(DIMS, "As above."),
            "first_batch_dims": _is(DIMS, "As above."),
            "insights": _list("Insight", "As above."),
        },
    ),
    "Peak": obj(
        "What the peak is made of; all of it is predicted from profiled steps.",
        {
            "dims": _is(DIMS, "The dimensions that everything is told at."),
            "profiled_dims": _is(DIMS, "Those of the profiled steps."),
            "is_predicted": _is(FLAG, "Whether the two differ."),
            "likely_error": _is(SHARE, "By which share forecasts are off in half of all cases."),
            "worst_error": _is(SHARE, "The same at worst."),
            "limit_bytes": _is(MAYBE_WHOLE, "The limit that was asked about; null without one. In bytes."),
            "timelines": _is(
                {"type": "object", "additionalProperties": {"$ref": "#/$defs/Timeline"}},
                "By config, the one without recompute first.",
            ),
            "effects": _list("Effect", "What each plan does."),
            "forecasts": _list("Forecast", "What each profiled config should need."),
        },
    ),
    "Timeline": obj(
        "A step of one config.",
        {
            "peak_bytes": _is(WHOLE, "Alive at the peak. In bytes."),
            "peak_operation": _is(WHOLE, "Position of the operation during which that is."),
            "stash_bytes": _is(WHOLE, "What the forward pass leaves for the backward pass. In bytes."),
            "backward_operation": _is(WHOLE, "Position of the first operation after the forward pass."),
            "operations": _list("Moment", "All that runs, in order."),
            "recomputed_operations": _is(WHOLE, "How many run once more."),
            "recomputed_before_peak": _is(WHOLE, "How many of them before the peak, in the chain that leads there."),
            "largest_at_peak": _list("Alive", "The largest tensors that are alive then."),
        },
    ),
    "Moment": obj(
        "An operation of a step.",
        {
            "name": _is(TEXT, "The training system's name of it."),
            "operator": _is(TEXT, "What it computes."),
            "phase": _is(PHASE, "What it is for."),
            "live_bytes": _is(WHOLE, "What is alive meanwhile. In bytes."),
        },
    ),
    "Alive": obj(
        "A tensor.",
        {
            "bytes": _is(WHOLE, "Its size. In bytes."),
            "shape": _is(TEXTS, "Its sizes, as expressions in the dimensions."),
            "node": _is(TEXT, "The operation that makes it."),
            "operator": _is(TEXT, "What that computes."),
            "phase": _is(PHASE, "What that is for."),
            "plan": _is(
                {"type": ["string", "null"]}, "The plan that would save it, or recomputed it; null without one."
            ),
        },
    ),
    "Effect": obj(
        "What a plan does.",
        {
            "config": _is(TEXT, "The plan."),
            "stash_saving_bytes": _is(WHOLE, "What it saves of the stash, alone. In bytes."),
            "peak_saving_bytes": _is(WHOLE, "What it saves of the peak, alone. In bytes."),
            "recompute_share": _is(SHARE, "Time of what runs once more, as a share of all kernels of a step."),
            "peak_of_all_others_bytes": _is(MAYBE_WHOLE, "Alive at the peak with every other plan on. In bytes."),
        },
    ),
    "Forecast": obj(
        "What a config should need.",
        {
            "config": _is(TEXT, "The config in a few words."),
            "choices": _is(TEXTS, "Its choices."),
            "peak_bytes": _is(WHOLE, "Peak of the process. In bytes."),
            "live_bytes": _is(WHOLE, "Tensors that are alive then. In bytes."),
            "stash_bytes": _is(WHOLE, "What the forward pass leaves. In bytes."),
            "recompute_share": _is(SHARE, "Time of what runs once more, as a share of all kernels of a step."),
            "holds_limit": _is({"type": ["boolean", "null"]}, "Whether it should fit; null without a limit."),
            "is_near_limit": _is({"type": ["boolean", "null"]}, "Whether that is not sure; null without a limit."),
            "largest_batch": _is(
                MAYBE_WHOLE, "Up to which batch it should fit, without a margin; null without a limit or a batch."
            ),
        },
    ),
}
