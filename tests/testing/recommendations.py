"""A recommendation as a finished run writes it, small and made up."""

from __future__ import annotations

from autotune.configuration import Checkpointing, Configuration
from autotune.events import Document


def configuration(
    micro: int, accumulation: int, every_n_layers: int | None = None, world_size: int = 1
) -> Configuration:
    """A configuration in short."""
    return Configuration(
        micro_batch_size=micro,
        accumulation_steps=accumulation,
        world_size=world_size,
        checkpointing=Checkpointing(every_n_layers=every_n_layers),
    )


def readings(samples_per_s: float, total_bytes: int) -> Document:
    """What was measured of a configuration."""
    return {
        "samples_per_s": samples_per_s,
        "samples_per_s_ci95": [samples_per_s * 0.98, samples_per_s * 1.02],
        "tokens_per_s": samples_per_s * 100,
        "step_s": 16 / samples_per_s,
        "memory": {"total_bytes": total_bytes},
    }


def document(
    chosen: Configuration | None = None,
    baseline: Configuration | None = None,
    *,
    alternative: Configuration | None = None,
    precision: str = "fp32",
    loss_repair: bool = False,
) -> Document:
    """The public document of a run called sample: 16×1 instead of 8×2, or 4×4."""
    chosen = chosen or configuration(16, 1)
    baseline = baseline or configuration(8, 2)
    alternative = alternative or configuration(4, 4)
    return {
        "schema": 1,
        "run": "sample",
        "recommendation": {
            "configuration": chosen.to_json(),  # type: ignore[dict-item]
            "measured": readings(150.0, 2**30),
            "sample_efficiency": {"value": 1.0, "interval": [1.0, 1.0], "basis": "not needed"},
            "baseline": {
                "configuration": baseline.to_json(),  # type: ignore[dict-item]
                "measured": readings(100.0, 3 * 2**28),
            },
            "speedup": {"value": 1.5, "ci95": [1.45, 1.55]},
            "memory_limit_bytes": 4 * 2**30,
            "reasons": ["It is faster.", "It fits <easily>."],
            "also_consider": ["untested: torch.compile"],
            "alternatives": [
                {
                    "kind": "least memory",
                    "configuration": alternative.to_json(),  # type: ignore[dict-item]
                    "measured": readings(120.0, 2**29),
                    "reason": "least memory",
                }
            ],
            "not_covered": ["Evaluation was not run."],
        },
        "trials": [],
        "workload": {
            "name": "sample",
            "task": "Trainer",
            "model_class": "GPT2LMHeadModel",
            "precision": precision,
            "loss_repair": loss_repair,
        },
        "environment": {"OMP_NUM_THREADS": "2"},
        "machine": {},
        "cost": {"wall_s": 60.0, "trials": 5, "trial_s": 40.0},
    }
