"""The training of a small GPT by `manapy fcdp train`: a complete example of manapy.fcdp.pytorch, and a test of a
cluster.

    model.py    the GPT: plain PyTorch, without sharding
    lora.py     adapters for any model: small trainable layers beside frozen ones
    text.py     bytes to learn from
    options.py  the options of a training, and their part in a saved state
    training.py the training: fully_shard, steps, validation, traffic
    plot.py     the loss as a picture
"""
