/*
 * Ends as soon as it has said what it has to say. Rank 0 forks rank 1, which opens a box of its own;
 * what rank 1 forks is silent.
 */
#include <ddp_doctor.h>

#include <sys/types.h>
#include <sys/wait.h>
#include <unistd.h>

static void speak(int32_t rank)
{
    ddp_doctor_identity identity = {rank, 2, rank};
    ddp_doctor_open(ddp_doctor_text_of("c"), &identity);
    for (int i = 0; i < 7; ++i)
        ddp_doctor_step();
    ddp_doctor_exit(0, ddp_doctor_text_of("main returned"));
}

int main(void)
{
    int status = 0;
    speak(0);
    if (fork() == 0) {
        speak(1);
        if (fork() == 0) {
            ddp_doctor_step();
            _exit(0);
        }
        _exit(0);
    }
    /* Nobody but the child that was forked here. */
    if (wait(&status) < 0 || wait(&status) >= 0)
        return 1;
    return status;
}
