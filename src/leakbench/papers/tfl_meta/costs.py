"""Table S3: bits and seconds of the mechanisms, really executed."""

from __future__ import annotations

import math

from leakbench.lazy import pd
from leakbench.papers.tfl_meta.common import table
from leakbench.report.artifacts import Tables
from leakbench.report.plots import having
from leakbench.report.tidy import SETTING
from leakbench.report.wording import rounded

COSTS = "costs"
METHOD, KEY_BITS, KEEP = (SETTING + name for name in ("method", "key_bits", "keep"))
NAMES = {
    "none": "plain",
    "gaussian_noise": "Gaussian noise",
    "random_mask": "random mask",
    "fixed_point": "plain, fixed point",
    "masked_pair": "shared bounded mask, K = 2",
    "additive_sharing": "additive shares",
    "paillier": "Paillier, packed",
    "paillier_unpacked": "Paillier, one value per ciphertext",
}
SECONDS = ("keygen", "protect", "add", "recover", "step")


def costs(frame: pd.DataFrame) -> pd.DataFrame:
    """A row per data set, model and method: means over seeds and repetitions, of all metrics; NaN where there is none.

    Args:
        frame: the tidy table of :data:`COSTS`.
    """
    frame = having(having(frame, "key_bits"), "keep")
    keys = ["dataset", "model", METHOD, KEY_BITS, KEEP]
    means = frame.groupby([*keys, "metric"], dropna=False, sort=False)["value"].mean().reset_index()
    wide = means.pivot_table(index=keys, columns="metric", values="value", dropna=False, sort=False, observed=True)
    wide = wide.dropna(subset="bits").reset_index()
    place = {name: index for index, name in enumerate(NAMES)}
    wide = wide.assign(place=wide[METHOD].map(place))
    return wide.sort_values(["dataset", "model", "place", KEY_BITS, KEEP], kind="stable").reset_index(drop=True)


@table(
    "S3",
    title="Bits and seconds of protecting an update",
    caption="Per client and round. Bits per coordinate: all that a client sends, and what of it goes to other "
    "clients; plain floats have 32. Paillier: values in fixed point with 32 binary places and 8 bits above, and guard "
    "bits for the sum; all clients share one key, so that one of them and the server together read all; a modulus of "
    "1,024 bits is a toy by today's standards. Additive shares are modulo 2^64. Random masks travel as a seed, or "
    "places, whichever is shorter. Times are processor time, mean over repetitions on one machine: one client "
    "protects, the server adds the messages of K clients, the sum is decrypted or all shares are added up. One value "
    "per ciphertext was measured on the first values of the update, and is in proportion to their number; the whole "
    "update is protected, added and recovered.",
    experiments=(COSTS,),
)
def table_s3(tables: Tables) -> pd.DataFrame:
    """A row per model and method."""
    rows = []
    for row in costs(tables[COSTS]).to_dict("records"):
        d, values = row["parameters"], row["values"]
        parts = {part: row.get(f"{part}_cpu_s", math.nan) for part in SECONDS}
        spent = [seconds for part, seconds in parts.items() if part in ("protect", "add", "recover")]
        whole = sum(seconds for seconds in spent if not math.isnan(seconds)) * d / values
        name, rho = NAMES.get(row[METHOD], row[METHOD]), rounded(row[KEEP], "g", missing="")
        rows.append(
            {
                "model": f"{row['model']}, {row['dataset']}",
                "mechanism": f"{name}, rho = {rho}" if rho else name,
                "key, bits": rounded(row[KEY_BITS], "g"),
                "values per ciphertext": rounded(row.get("slots", math.nan), "g"),
                "bits per coordinate": f"{row['bits'] / d:.4g}",
                "to clients": f"{(row['bits'] - row['server_bits']) / d:.4g}",
                "values measured": f"{values:g}",
                **{
                    f"{part}, us per value": rounded(1e6 * parts[part] / values, ".3g")
                    for part in ("protect", "add", "recover")
                },
                "whole update, s": f"{whole:.3g}",
                "key pair, s": rounded(parts["keygen"], ".3g"),
                "training step, s": rounded(parts["step"], ".3g"),
            }
        )
    return pd.DataFrame(rows)
