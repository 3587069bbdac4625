/* fake_mlx5.h - the values that fake_mlx5.c, a libmlx5.so.1 without hardware, returns for every queue pair. */
#ifndef FAKE_MLX5_H
#define FAKE_MLX5_H

#include <infiniband/mlx5dv.h>

extern struct mlx5dv_qp fake_mlx5;

#endif
