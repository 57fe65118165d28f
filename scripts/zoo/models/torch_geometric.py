"""Graph networks of PyTorch Geometric: nodes and edges are dynamic."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.export import Dim
from torch.nn import functional

from scripts.zoo.entries import Case, Models

MODELS = Models("torch_geometric")
FEATURES, CLASSES = 6, 3
NODES, EDGES = Dim("nodes"), Dim("edges")


def _graph(samples: int) -> tuple[Tensor, ...]:
    """Features (nodes, FEATURES), edges (2, edges), labels (nodes,) of a random graph."""
    nodes, edges = 8 + samples, 20 + 3 * samples
    return torch.randn(nodes, FEATURES), torch.randint(nodes, (2, edges)), torch.randint(CLASSES, (nodes,))


def _loss(model: nn.Module, x: Tensor, edge_index: Tensor, labels: Tensor) -> Tensor:
    return functional.cross_entropy(model(x, edge_index), labels)


def _nodes(name: str, **options: Any) -> Case:
    """A classifier of nodes, of the models of the package with two layers."""
    from torch_geometric.nn import models

    model = getattr(models, name)(FEATURES, 8, 2, CLASSES, **options)
    return Case(model, _loss, _graph, ({0: NODES}, {1: EDGES}, {0: NODES}))


class _Layers(nn.Module):
    """Two layers of the package with a ReLU between them."""

    def __init__(self, layer: Callable[[int, int], nn.Module]) -> None:
        super().__init__()
        self.first, self.second = layer(FEATURES, 8), layer(8, CLASSES)

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        return self.second(self.first(x, edge_index).relu(), edge_index)


def _layers(name: str, **options: Any) -> Case:
    """A classifier of nodes, of two layers of a kind."""
    from torch_geometric import nn as layers

    model = _Layers(lambda before, after: getattr(layers, name)(before, after, **options))
    return Case(model, _loss, _graph, ({0: NODES}, {1: EDGES}, {0: NODES}))


@MODELS("GCN")
def gcn() -> Case:
    return _nodes("GCN")


@MODELS("GAT")
def gat() -> Case:
    return _nodes("GAT", heads=2)


@MODELS("GATv2")
def gatv2() -> Case:
    return _nodes("GAT", heads=2, v2=True)


@MODELS("GraphSAGE")
def sage() -> Case:
    return _nodes("GraphSAGE")


@MODELS("GraphSAGE, max aggregation")
def sage_max() -> Case:
    return _nodes("GraphSAGE", aggr="max")


@MODELS("GIN")
def gin() -> Case:
    return _nodes("GIN", norm="batch_norm")


@MODELS("PNA")
def pna() -> Case:
    return _nodes(
        "PNA",
        aggregators=["mean", "min", "max", "std"],
        scalers=["identity", "amplification"],
        deg=torch.tensor([0, 3, 4, 2, 1]),
    )


@MODELS("EdgeCNN")
def edge_cnn() -> Case:
    return _nodes("EdgeCNN")


@MODELS("GraphConv")
def graph_conv() -> Case:
    return _layers("GraphConv")


@MODELS("ChebConv")
def cheb() -> Case:
    return _layers("ChebConv", K=2)


@MODELS("TransformerConv")
def transformer_conv() -> Case:
    return _layers("TransformerConv", heads=1)


@MODELS("TAGConv")
def tag() -> Case:
    return _layers("TAGConv", K=2)


@MODELS("GCN, classification of graphs")
def gcn_pooled() -> Case:
    from torch_geometric.nn import GCNConv, global_mean_pool

    class Pooled(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer, self.head = GCNConv(FEATURES, 8), nn.Linear(8, CLASSES)

        def forward(self, x: Tensor, edge_index: Tensor, graph: Tensor, count: int) -> Tensor:
            return self.head(global_mean_pool(self.layer(x, edge_index).relu(), graph, size=count))

    def loss(model: nn.Module, x: Tensor, edge_index: Tensor, graph: Tensor, labels: Tensor) -> Tensor:
        return functional.cross_entropy(model(x, edge_index, graph, labels.shape[0]), labels)

    def batch(samples: int) -> tuple[Tensor, ...]:
        nodes, edges = 6 * samples, 15 * samples
        graph = torch.arange(samples).repeat_interleave(6)
        return torch.randn(nodes, FEATURES), torch.randint(nodes, (2, edges)), graph, torch.randint(CLASSES, (samples,))

    return Case(Pooled(), loss, batch, ({0: NODES}, {1: EDGES}, {0: NODES}, {0: Dim("graphs")}))


@MODELS("SchNet")
def schnet() -> Case:
    from torch_geometric.nn.models import SchNet

    model = SchNet(8, 8, 2, 6, cutoff=5.0, interaction_graph=lambda pos, batch: (edges(pos), lengths(pos)))

    def edges(pos: Tensor) -> Tensor:
        return torch.stack([torch.arange(5), (torch.arange(5) + 1) % 5])

    def lengths(pos: Tensor) -> Tensor:
        one, other = edges(pos)
        return (pos[one] - pos[other]).norm(dim=-1)

    def loss(model: nn.Module, positions: Tensor, energy: Tensor) -> Tensor:
        numbers = torch.arange(5) + 1
        return functional.mse_loss(model(numbers, positions, torch.zeros(5, dtype=torch.long)), energy)

    return Case(model, loss, lambda n: (torch.randn(5, 3), torch.randn(1, 1)), ({}, {}))
