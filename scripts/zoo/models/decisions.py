"""Tables, policies and metric learning: pytorch-tabnet, rtdl_revisiting_models, stable_baselines3, and further ones."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.export import Dim
from torch.nn import functional

from scripts.zoo.entries import Case, Models
from scripts.zoo.losses import cross_entropy, images

TABNET = Models("pytorch-tabnet")
RTDL = Models("rtdl_revisiting_models")
STABLE_BASELINES3 = Models("stable_baselines3")
METRIC_LEARNING = Models("pytorch-metric-learning")
EFFICIENTNET = Models("efficientnet_pytorch")
DENOISING = Models("denoising_diffusion_pytorch")


# --- tables ----------------------------------------------------------------------------------------------------------


def _table(samples: int) -> tuple[Tensor, ...]:
    return torch.randn(samples, 6), torch.randint(3, (samples,))


@TABNET("TabNet")
def tabnet() -> Case:
    from pytorch_tabnet.tab_network import TabNet

    model = TabNet(6, 3, n_d=4, n_a=4, n_steps=2, virtual_batch_size=64, group_attention_matrix=torch.eye(6))

    def loss(model: nn.Module, inputs: Tensor, labels: Tensor) -> Tensor:
        scores, penalty = model(inputs)
        return functional.cross_entropy(scores, labels) + 1e-3 * penalty

    rows = 4 * Dim("samples", max=16)  # the model splits larger batches by their number
    return Case(model, loss, lambda samples: _table(4 * samples), rows=rows)


@RTDL("MLP")
def mlp() -> Case:
    from rtdl_revisiting_models import MLP

    return Case(MLP(d_in=6, d_out=3, n_blocks=2, d_block=8, dropout=0.0), cross_entropy, _table)


@RTDL("ResNet")
def resnet() -> Case:
    from rtdl_revisiting_models import ResNet

    model = ResNet(
        d_in=6, d_out=3, n_blocks=2, d_block=8, d_hidden=None, d_hidden_multiplier=2.0, dropout1=0.0, dropout2=0.0
    )
    return Case(model, cross_entropy, _table)


@RTDL("FT-Transformer")
def ft_transformer() -> Case:
    from rtdl_revisiting_models import FTTransformer

    model = FTTransformer(
        n_cont_features=6,
        cat_cardinalities=[4, 5],
        d_out=3,
        n_blocks=2,
        d_block=16,
        attention_n_heads=2,
        attention_dropout=0.0,
        ffn_d_hidden_multiplier=2.0,
        ffn_dropout=0.0,
        residual_dropout=0.0,
    )

    def loss(model: nn.Module, numbers: Tensor, categories: Tensor, labels: Tensor) -> Tensor:
        return functional.cross_entropy(model(numbers, categories), labels)

    return Case(model, loss, lambda n: (torch.randn(n, 6), torch.randint(4, (n, 2)), torch.randint(3, (n,))))


# --- policies --------------------------------------------------------------------------------------------------------


def _spaces() -> tuple[object, object]:
    from gymnasium import spaces

    return spaces.Box(-1.0, 1.0, (4,)), spaces.Box(-1.0, 1.0, (2,))


@STABLE_BASELINES3("PPO, continuous actions")
def ppo() -> Case:
    from stable_baselines3.common.policies import ActorCriticPolicy

    model = ActorCriticPolicy(*_spaces(), lambda _: 3e-4, net_arch=[8])

    def loss(model: nn.Module, observations: Tensor, actions: Tensor, advantages: Tensor, before: Tensor) -> Tensor:
        values, log_prob, entropy = model.evaluate_actions(observations, actions)
        ratio = (log_prob - before).exp()
        gain = torch.min(advantages * ratio, advantages * ratio.clamp(0.8, 1.2)).mean()
        return -gain + 0.5 * functional.mse_loss(values.flatten(), advantages) - 0.01 * entropy.mean()

    return Case(model, loss, lambda n: (torch.randn(n, 4), torch.randn(n, 2), torch.randn(n), torch.randn(n) - 3))


@STABLE_BASELINES3("DQN")
def dqn() -> Case:
    from gymnasium import spaces
    from stable_baselines3.dqn.policies import DQNPolicy

    policy = DQNPolicy(spaces.Box(-1.0, 1.0, (4,)), spaces.Discrete(3), lambda _: 3e-4, net_arch=[8])

    def loss(model: nn.Module, observations: Tensor, actions: Tensor, targets: Tensor) -> Tensor:
        chosen = model(observations).gather(1, actions.unsqueeze(1)).squeeze(1)
        return functional.smooth_l1_loss(chosen, targets)

    return Case(policy.q_net, loss, lambda n: (torch.randn(n, 4), torch.randint(3, (n,)), torch.randn(n)))


@STABLE_BASELINES3("SAC, actor")
def sac() -> Case:
    from stable_baselines3.sac.policies import SACPolicy

    policy = SACPolicy(*_spaces(), lambda _: 3e-4, net_arch=[8])

    def loss(model: nn.Module, observations: Tensor, noise: Tensor) -> Tensor:
        mean, log_std, _ = model.get_action_dist_params(observations)
        actions = mean + log_std.exp() * noise
        squashed = actions.tanh()
        density = torch.distributions.Normal(mean, log_std.exp()).log_prob(actions)
        return (density - (1 - squashed.square() + 1e-6).log()).sum(1).mean() + squashed.square().mean()

    return Case(policy.actor, loss, lambda n: (torch.randn(n, 4), torch.randn(n, 2)))


# --- metric learning -------------------------------------------------------------------------------------------------


def _metric(name: str, **options: float) -> Case:
    """Embeddings of six samples at least, so that all labels occur twice."""
    from pytorch_metric_learning import losses

    class Learner(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.network, self.criterion = nn.Linear(6, 4), getattr(losses, name)(**options)

        def forward(self, inputs: Tensor) -> Tensor:
            return self.network(inputs)

    def loss(model: nn.Module, inputs: Tensor, labels: Tensor) -> Tensor:
        return model.criterion(model(inputs), labels)

    return Case(Learner(), loss, lambda n: (torch.randn(2 * n, 6), torch.arange(2 * n) % 3))


@METRIC_LEARNING("ArcFace")
def arcface() -> Case:
    return _metric("ArcFaceLoss", num_classes=3, embedding_size=4)


@METRIC_LEARNING("ProxyAnchor")
def proxy_anchor() -> Case:
    return _metric("ProxyAnchorLoss", num_classes=3, embedding_size=4)


@METRIC_LEARNING("Triplet margin")
def triplet() -> Case:
    return _metric("TripletMarginLoss")


@METRIC_LEARNING("Supervised contrastive")
def contrastive() -> Case:
    return _metric("SupConLoss")


# --- further packages ------------------------------------------------------------------------------------------------


@EFFICIENTNET("EfficientNet-B0")
def efficientnet() -> Case:
    from efficientnet_pytorch import EfficientNet

    model = EfficientNet.from_name("efficientnet-b0", num_classes=5, drop_connect_rate=0.0, width_coefficient=0.5)
    return Case(model, cross_entropy, images(32, times=4), rate=1e-3)


@DENOISING("U-Net")
def unet() -> Case:
    from denoising_diffusion_pytorch import Unet

    def loss(model: nn.Module, inputs: Tensor, steps: Tensor, noise: Tensor) -> Tensor:
        return functional.mse_loss(model(inputs, steps), noise)

    def batch(samples: int) -> tuple[Tensor, ...]:
        inputs, noise = torch.randn(2, samples, 3, 16, 16)
        return inputs, torch.randint(1000, (samples,)), noise

    return Case(Unet(8, dim_mults=(1, 2), flash_attn=False, attn_heads=2, attn_dim_head=8), loss, batch)
