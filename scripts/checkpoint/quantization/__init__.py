"""How matrices are stored: one module per kind of scheme, and their names for the command line."""
from . import block_fp8, fp8, mxfp4, nvfp4
from .fp8 import TablePart
from .plain import Dequantized, Plain, plain

__all__ = ["SCHEMES", "Dequantized", "Plain", "TablePart", "plain"]

# name -> scheme of the experts, and of the dense matrices where they are quantized too
SCHEMES = {
    "nvfp4_modelopt": nvfp4.Modelopt(),
    "nvfp4_ct": nvfp4.CompressedTensors(),
    "mxfp4": mxfp4.GptOss(),
    "mxfp4_ct": mxfp4.CompressedTensors(),
    "ds_fp4": mxfp4.Deepseek(),
    "fp8_block": block_fp8.Inverse(),
    "fp8_tensor_modelopt": fp8.Modelopt(per_channel=False),
    "fp8_channel_modelopt": fp8.Modelopt(per_channel=True),
    "fp8_tensor_ct": fp8.CompressedTensors(per_channel=False),
    "fp8_channel_ct": fp8.CompressedTensors(per_channel=True),
}
