/* Which GPUs a program gets after a restart: prints the pairs of cuda.c.  OLD NEW [UUID...]: folders as
 * /proc/driver/nvidia/gpus at the checkpoint and after the restart; the program's GPUs at the checkpoint. */
static const char *folder_of_gpus;
#define MPY_GPUS folder_of_gpus
#include "../../../wrappers/cuda.c"

static void print(const uuid_t *uuid) {
    for (int i = 0; i < 16; i++) printf("%02x", uuid->bytes[i]);
}

int main(int argc, char **argv) {
    gpus_t now;
    pair_t pairs[MOST];
    folder_of_gpus = argv[1];
    read_host(&of_host);
    folder_of_gpus = argv[2];
    read_host(&now);
    for (int i = 3; i < argc; i++)
        if (!read_uuid(argv[i], &of_program.uuids[of_program.count++])) return 1;
    int n = pair_up(&now, pairs);
    for (int i = 0; i < n; i++) {
        print(&pairs[i].from);
        printf(" ");
        print(&pairs[i].to);
        printf("\n");
    }
    return 0;
}
