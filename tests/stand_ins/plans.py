"""Plans of which nothing is known but what they switch on."""

from autorecompute.plans import Plan, parse_choices


def plan_of_id(text):
    choices = parse_choices(text.split(","))
    label = " with ".join(choice.site for choice in choices)
    return Plan(choices=choices, label=label, occurrences=0, saving_bytes=None, saving="0")
