// Loads the library, copies from a file by it, and unloads it. A handler that was set before gets the signal for a page that is gone.
#include <dlfcn.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <sys/mman.h>
#include <sys/types.h>
#include <unistd.h>

static void on_bus_error(int signal)
{
    const char done[] = "= done\n";
    _exit(signal == SIGBUS && write(1, done, sizeof done - 1) > 0 ? 0 : 7);
}

int main(int count, char **words)
{
    struct sigaction action = {.sa_handler = on_bus_error};
    if (count != 3 || sigaction(SIGBUS, &action, NULL) != 0)
        return 1;
    void *library = dlopen(words[1], RTLD_NOW);
    if (library == NULL) {
        fputs(dlerror(), stderr);
        return 2;
    }
    int (*open_file)(const char *, int, mode_t) = dlsym(library, "homenode_open");
    ssize_t (*read_file)(int, void *, size_t, off_t) = dlsym(library, "homenode_pread");
    int (*close_file)(int) = dlsym(library, "homenode_close");
    char bytes[100];
    int file = open_file(words[2], O_RDWR, 0);
    for (int round = 0; round < 50; round++)
        if (read_file(file, bytes, sizeof bytes, 0) != sizeof bytes || bytes[0] != 'a')
            return 3;
    if (close_file(file) != 0 || dlclose(library) != 0)
        return 4;
    file = open(words[2], O_RDWR);
    volatile char *mapped = mmap(NULL, 4096, PROT_READ, MAP_SHARED, file, 0);
    if (mapped == MAP_FAILED || ftruncate(file, 0) != 0)
        return 5;
    (void)*mapped;
    return 6;
}
