"""A small network learns the sign of a product. Each rank has its own data; all average their gradients.
Usage: train.py STEPS"""

import sys

import torch
from mpi4py import MPI

world = MPI.COMM_WORLD
steps = int(sys.argv[1])
torch.set_num_threads(1)
torch.manual_seed(0)  # the same network on all ranks
network = torch.nn.Sequential(torch.nn.Linear(2, 32), torch.nn.Tanh(), torch.nn.Linear(32, 1))
optimizer = torch.optim.Adam(network.parameters(), lr=0.01)
data = torch.Generator().manual_seed(world.rank)

for step in range(1, steps + 1):
    x = torch.randn(64, 2, generator=data)
    loss = torch.nn.functional.soft_margin_loss(network(x)[:, 0], torch.sign(x[:, 0] * x[:, 1]))
    optimizer.zero_grad()
    loss.backward()
    for parameter in network.parameters():
        gradient = parameter.grad.numpy()
        world.Allreduce(MPI.IN_PLACE, gradient)
        gradient /= world.size
    optimizer.step()
    if step % (steps // 20) == 0:
        mean = world.reduce(loss.item())
        if world.rank == 0:
            print(f"step {step} loss {mean / world.size:.9f}", flush=True)
