"""Training graphs that can be followed on paper, and such as chance draws."""

import pytest

LAYERS = 3


@pytest.fixture
def make_layers(make_node, make_graph):
    """Builds three layers, each of which keeps the result of a Dropout and a sum with the layer below.

    Of a Dropout's mask nobody ever reads anything, and what stands before the Dropout is read in the forward pass
    alone. Both passes reshape what they read.
    """

    def forward(layer):
        below, here = layer - 1, layer
        return [
            make_node("Mul", (f"sum{below}",), {f"scaled{here}": 1}, again=True),
            make_node("Dropout", (f"scaled{here}",), {f"dropped{here}": 10, f"mask{here}": 2}, again=True),
            make_node("Reshape", (f"dropped{here}",), {f"flat{here}": 0}, again=True, shares=True),
            make_node("Add", (f"flat{here}", f"sum{below}"), {f"sum{here}": 4}, again=True),
        ]

    def backward(layer):
        return [
            make_node("Reshape", (f"sum{layer}",), {f"long{layer}": 0}, shares=True),
            make_node("WeightGrad", (f"long{layer}", f"dsum{layer}"), {f"weight{layer}": 3}),
            make_node("DropoutGrad", (f"dropped{layer}", f"dsum{layer}"), {f"dsum{layer - 1}": 4}),
        ]

    layers = range(1, LAYERS + 1)
    return lambda: make_graph(
        [node for layer in layers for node in forward(layer)],
        [f"sum{LAYERS}"],
        [node for layer in reversed(layers) for node in backward(layer)],
        results=[f"weight{layer}" for layer in layers],
    )


@pytest.fixture
def draw_graph(make_node, make_graph):
    """Draws a graph: who reads what, what is large, what can run once more, and what shares memory, is up to chance."""

    def draw_half(draw, names, operators, *, values, again):
        nodes = []
        for name in names:
            # Mostly from near by, as in a model.
            reads = {draw.choice(values[-5:]) for _ in range(draw.choice((1, 2, 2, 3)))}
            shares = draw.random() < 0.2
            makes = {name: 0 if shares else draw.randint(1, 100)}
            if not shares and draw.random() < 0.25:
                makes[f"{name}_too"] = draw.randint(1, 100)
            can_run = draw.random() < again
            nodes.append(make_node(draw.choice(operators), tuple(sorted(reads)), makes, again=can_run, shares=shares))
            values = [*values, *makes]
        return nodes, values

    def draw_graph(draw):
        count = draw.randint(6, 16)
        forward, values = draw_half(draw, [f"f{i}" for i in range(count)], "ABCD", values=["input"], again=0.6)
        own = [value for node in forward for value in node.makes if not node.shares]
        outputs = sorted({own[-1], draw.choice(own)})
        # The backward pass reads from the end to the beginning.
        values = [*draw.sample(values, len(values)), *(f"d{value}" for value in outputs)]
        backward = []
        for place in range(count):
            read = draw.sample(values, draw.choice((1, 2, 2, 3)))
            shares = draw.random() < 0.2
            gradient = make_node("G", tuple(read), {f"b{place}": 0 if shares else draw.randint(1, 100)}, shares=shares)
            backward.append(gradient)
            values.append(gradient.key)
        made = own + [node.key for node in backward if not node.shares]
        return make_graph(forward, outputs, backward, results=draw.sample(made, 2))

    return draw_graph
