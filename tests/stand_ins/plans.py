"""Plans of which nothing is known but what they switch on."""

from autorecompute.plans import Choice, Plan


def plan_of_id(text):
    choices = tuple(sorted({Choice.parse(part) for part in text.split(",")}, key=str))
    label = " with ".join(choice.site for choice in choices)
    return Plan(choices=choices, label=label, occurrences=0, saving_bytes=None, saving="0")
