/* Which GPUs a program gets after a restart: prints the pairs of cuda.c.  OLD NEW [UUID...]: folders as
 * /proc/driver/nvidia/gpus at the checkpoint and after the restart; the program's GPUs at the checkpoint. */
static const char *folder_of_gpus;
static char device[500];
#define MPY_GPUS folder_of_gpus
#define MPY_GPU device
#include "../../../wrappers/cuda.c"

static void print(const uuid_t *uuid) {
    for (int i = 0; i < 16; i++) printf("%02x", uuid->bytes[i]);
}

/* Its devices are there, too. */
static void read_from(const char *folder, gpus_t *gpus) {
    folder_of_gpus = folder;
    snprintf(device, sizeof device, "%s/nvidia%%d", folder);
    read_host(gpus);
}

int main(int argc, char **argv) {
    gpus_t now;
    pair_t pairs[MOST];
    read_from(argv[1], &of_host);
    read_from(argv[2], &now);
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
