"""Updates under Paillier encryption, which the server adds without reading them (Paillier 1999)."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from pydantic import Field, model_validator

from leakbench.defenses.base import DEFENSES, Defense, PrivacyStatement, Schedule
from leakbench.defenses.fixed_point import at_most
from leakbench.errors import ConfigError
from leakbench.federated.message import EncryptedMessage, Message
from leakbench.federated.paillier import Packing, add, check_key_bits, decrypt, encrypt, simulated_keys
from leakbench.federated.step import ClientSteps
from leakbench.lazy import torch
from leakbench.randomness import Streams, named_bytes

if TYPE_CHECKING:
    from phe import PaillierPrivateKey


@DEFENSES.register("paillier", version=1)
class Paillier(Defense):
    """The update in fixed point under Paillier encryption; clients share one key, and the server adds ciphertexts.

    All clients have the private key, as in Zhang, Kang et al. (2023): one client and the server together read every
    update. So this protects against the server alone; keys of which each client has a share (threshold decryption) are
    not implemented. Moduli below 2,048 bits, those of 1,024 among them, are no longer held to be safe: they are toys
    that save time in simulations.

    The decrypted mean is exactly that of ``fixed_point`` with the same ``fraction_bits``. An attacker on the server
    sees ciphertexts over ``n^2``; each packed coordinate gets digits of its own of that fraction.

    Keys and ciphertexts are derived from named streams, so that records repeat. They are therefore no secret in a
    simulation, but no attack here uses that.
    """

    biased: ClassVar[str] = "the server sees ciphertexts; the mean that it has decrypted is exact"

    key_bits: int = Field(
        2048,
        ge=1,
        description="of the modulus n: multiples of 8 from 1024 to 4096; toy: 16 to 1016; safe: 2048 and more",
    )
    toy: bool = Field(False, description="a modulus that anyone can factor")
    clients: int = Field(ge=1, description="most clients whose updates are summed, K")
    fraction_bits: int = Field(32, ge=0, description="fractional bits that are kept of a coordinate, f")
    integer_bits: int = Field(8, ge=1, description="bits above them, the sign among them")
    packed: bool = Field(True, description="as many coordinates in a ciphertext as fit; else one")

    @model_validator(mode="after")
    def _known_size(self) -> Paillier:
        try:
            check_key_bits(self.key_bits, toy=self.toy)
        except ConfigError as error:
            raise ValueError(str(error)) from error
        return self

    @property
    def packing(self) -> Packing:
        """Layout of coordinates in plaintexts.

        Raises:
            ConfigError: slots of more than 64 bits.
            Infeasible: the modulus has no room for a coordinate.
        """
        return Packing(self.key_bits, self.clients, self.fraction_bits, self.integer_bits, self.packed)

    @property
    def key(self) -> PaillierPrivateKey:
        """The clients' key pair."""
        return simulated_keys(self.key_bits, toy=self.toy)

    def protect_update(self, steps: ClientSteps, streams: Streams) -> Message:
        rows = zip(steps.gradient.detach().cpu().numpy(), streams.keys, strict=True)
        packing = self.packing
        vectors = tuple(encrypt(row, self.key, packing, named_bytes(*key, "paillier")) for row, key in rows)
        return EncryptedMessage(vectors, steps.gradient)

    def aggregate(self, message: Message, clients: int) -> torch.Tensor:
        """The decrypted sums over the clients, ``[n / clients, d]``.

        Raises:
            Infeasible: more clients than the mechanism can sum.
        """
        at_most(self.name, self.clients, clients)
        assert isinstance(message, EncryptedMessage)
        starts = range(0, len(message.vectors), clients)
        sums = [decrypt(add(message.vectors[start : start + clients]), self.key) for start in starts]
        means: torch.Tensor = torch.stack([torch.from_numpy(total / clients) for total in sums]).to(message.like)
        return means

    def privacy(self, schedule: Schedule) -> PrivacyStatement:
        strength = "easy, since anyone can factor this modulus" if self.toy else "as hard as n-th residues modulo n^2"
        return PrivacyStatement(
            None,
            None,
            f"no differential privacy: the server adds ciphertexts; reading one is {strength}, but for clients, who "
            "have the key",
        )
