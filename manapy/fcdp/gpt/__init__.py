"""The training of a small GPT behind `manapy fcdp train`: an example of manapy.fcdp.pytorch that is complete, and a
trial of a cluster.

    model.py    the GPT: plain PyTorch, which knows nothing of sharding
    lora.py     adapters for any model: frozen layers with something small and trainable beside them
    text.py     bytes to learn from
    options.py  what is trained and how, and what a saved state says of it
    training.py the training: fully_shard, steps, validation, what was sent
    plot.py     the loss as a picture
"""
