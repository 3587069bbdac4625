// MPI from C++ by the bindings of MPI 2 (namespace MPI), which MPICH still has, over a checkpoint and restart:
// test_languages.py.
#include <cstdio>
#include <cstdlib>
#include <mpi.h>
#include <unistd.h>

static int failures, handled, copied;

static void check(bool good, const char *what)
{
    if (good) return;
    std::printf("rank %d: %s\n", MPI::COMM_WORLD.Get_rank(), what);
    failures++;
}

// Not commutative: digits in the order of the ranks.
static void append(const void *in, void *inout, int count, const MPI::Datatype &type)
{
    const int *from = static_cast<const int *>(in);
    for (int i = 0; i < count && type == MPI::INT; i++) static_cast<int *>(inout)[i] += 10 * from[i];
}

template <typename Object> static void on_error(Object &object, int *code, ...)
{
    object.Get_errhandler().Free(); // it is the object itself
    handled += *code != MPI::SUCCESS;
}

static int on_copy(const MPI::Comm &, int, void *extra, void *in, void *out, bool &keep)
{
    copied += extra == &copied;
    *static_cast<void **>(out) = in;
    keep = true;
    return MPI::SUCCESS;
}

int main(int argc, char **argv)
{
    MPI::Init(argc, argv);
    const int rank = MPI::COMM_WORLD.Get_rank(), size = MPI::COMM_WORLD.Get_size();
    int expected = 0, mine = rank + 1, found = -1, word = 0;
    void *value = nullptr;

    MPI::Intracomm comm = MPI::COMM_WORLD.Dup();
    MPI::Op digits;
    digits.Init(append, false);
    MPI::Win window = MPI::Win::Create(&word, sizeof word, sizeof word, MPI::INFO_NULL, comm);
    comm.Set_errhandler(MPI::Comm::Create_errhandler(on_error<MPI::Comm>));
    window.Set_errhandler(MPI::Win::Create_errhandler(on_error<MPI::Win>));
    const int keyval = MPI::Comm::Create_keyval(on_copy, MPI::Comm::NULL_DELETE_FN, &copied);
    comm.Set_attr(keyval, &failures);

    std::puts("ready");
    std::fflush(stdout);
    while (access(std::getenv("STATE_GO"), F_OK) != 0) usleep(10000);

    for (int i = 0; i < size; i++) expected = 10 * expected + i + 1;
    comm.Allreduce(&mine, &found, 1, MPI::INT, digits);
    check(found == expected, "operation");
    comm.Send(&mine, 1, MPI::INT, size, 0); // no such rank
    check(handled == 1, "error handler of a communicator");
    window.Put(&mine, 1, MPI::INT, size, 0, 1, MPI::INT);
    check(handled == 2, "error handler of a window");
    MPI::Intracomm copy = comm.Dup();
    check(copied == 1 && copy.Get_attr(keyval, &value) && value == &failures, "attribute");
    copy.Set_errhandler(MPI::ERRORS_THROW_EXCEPTIONS);
    try {
        copy.Send(&mine, 1, MPI::INT, size, 0);
        check(false, "no exception");
    } catch (MPI::Exception error) {
        check(error.Get_error_class() == MPI::ERR_RANK, "exception");
    }
    copy.Free();
    window.Free();
    digits.Free();
    comm.Free();
    if (failures == 0) std::puts("ok");
    MPI::Finalize();
    return failures != 0;
}
