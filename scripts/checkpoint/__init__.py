"""Makes checkpoint folders of made-up models: what scripts/make-checkpoint and scripts/oracle-test share.

families/ says which tensors a model type has, quantization/ how a matrix is stored, layout names and joins tensors as
files have them, writer streams them to disk.
"""
