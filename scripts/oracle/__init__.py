"""Live comparison with transformers: what scripts/oracle-test is made of.

cases draws models and prompts from a seed, transformers_side and engine_side compute logits, verdict compares them.
"""
