"""leakbench: replication of data reconstruction attacks and defenses in federated learning."""

__version__ = "0.1.0"
