/* The guest's process 1 once its root is there: runs the command, and sends what it writes and how it ends to the host.
 *     agent PORT DIRECTORY COMMAND-FILE
 * The command file holds the words of the command, each ended by a NUL. What goes to the host goes through one port, so
 * that the end comes behind all that was written: frames of a kind, a length (32 bits, little-endian) and bytes.
 *     S  the command starts     O, E  standard output, error     X  its exit status, one byte
 * The command gets pipes and not the port itself, which can be open once only: programs open /dev/stdout again. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/signalfd.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "mark.h"

static int port;

/* Process 1 must not end. The kernel's log is what the host shows of a guest that dies. */
static void fail(const char *what)
{
    fprintf(stderr, "lab: agent: %s: %s\n", what, strerror(errno));
    abort();
}

static void send_all(const void *bytes, size_t length)
{
    for (const char *next = bytes; length;) {
        ssize_t done = write(port, next, length);
        if (done < 0 && errno != EINTR && errno != EAGAIN)
            fail("the port to the host");
        if (done > 0) {
            next += done;
            length -= done;
        }
    }
}

static void send_frame(char kind, const void *bytes, uint32_t length)
{
    unsigned char head[5] = {kind, length, length >> 8, length >> 16, length >> 24};
    send_all(head, sizeof head);
    send_all(bytes, length);
}

/* Sends what there is to read: as much as a pipe can hold, so that a writer who never stops is not waited for. Says
 * whether there can be more later. */
static int forward(int from, char kind)
{
    static char bytes[1 << 15];
    for (int reads = 0; reads < (1 << 20 >> 15); reads++) {
        ssize_t length = read(from, bytes, sizeof bytes);
        if (length > 0)
            send_frame(kind, bytes, length);
        else if (length == 0)
            return 0;
        else if (errno != EINTR)
            return errno == EAGAIN;
    }
    return 1;
}

static char **read_words(const char *file)
{
    static char bytes[1 << 21];
    int from = open(file, O_RDONLY | O_CLOEXEC);
    if (from < 0)
        fail(file);
    size_t length = 0;
    for (ssize_t more; (more = read(from, bytes + length, sizeof bytes - 1 - length)) > 0;)
        length += more;
    close(from);
    char **words = calloc(length + 1, sizeof *words);
    if (!words)
        fail("memory for the command's words");
    size_t count = 0;
    for (size_t at = 0; at < length; at += strlen(bytes + at) + 1)
        words[count++] = bytes + at;
    return words;
}

static void run_command(const char *directory, char **words, int out, int err)
{
    sigset_t none;
    sigemptyset(&none);
    sigprocmask(SIG_SETMASK, &none, NULL);
    setsid();
    int null = open("/dev/null", O_RDONLY);
    if (dup2(null, 0) < 0 || dup2(out, 1) < 0 || dup2(err, 2) < 0)
        _exit(126);
    if (chdir(directory)) {
        fprintf(stderr, "lab: %s: %s\n", directory, strerror(errno));
        _exit(126);
    }
    execvp(words[0], words);
    fprintf(stderr, "lab: %s: %s\n", words[0], strerror(errno));
    _exit(errno == ENOENT ? 127 : 126);
}

/* Takes the status of every process that has ended. Says whether the command was among them. */
static int reap(pid_t command, int *status)
{
    int found = 0, one;
    for (pid_t ended; (ended = waitpid(-1, &one, WNOHANG)) > 0;)
        if (ended == command) {
            *status = one;
            found = 1;
        }
    return found;
}

int main(int count, char **words)
{
    if (count != 4)
        return 2;
    umask(022);
    port = open(words[1], O_RDWR | O_CLOEXEC);
    if (port < 0)
        fail(words[1]);
    sigset_t child_ended;
    sigemptyset(&child_ended);
    sigaddset(&child_ended, SIGCHLD);
    sigprocmask(SIG_BLOCK, &child_ended, NULL);
    int ended = signalfd(-1, &child_ended, SFD_CLOEXEC | SFD_NONBLOCK);
    int out[2], err[2];
    if (ended < 0 || pipe2(out, O_CLOEXEC) || pipe2(err, O_CLOEXEC))
        fail("pipes");
    char **command_words = read_words(words[3]);

    send_frame('S', "", 0);
    MARK(MARK_COMMAND_BEGIN);
    pid_t command = fork();
    if (command == 0)
        run_command(words[2], command_words, out[1], err[1]);
    if (command < 0)
        fail("fork");
    close(out[1]);
    close(err[1]);
    /* The command's child only gets blocking pipes: the flag belongs to this end. */
    fcntl(out[0], F_SETFL, O_NONBLOCK);
    fcntl(err[0], F_SETFL, O_NONBLOCK);

    int status = 0;
    struct pollfd from[3] = {{ended, POLLIN, 0}, {out[0], POLLIN, 0}, {err[0], POLLIN, 0}};
    for (int running = 1; running;) {
        if (poll(from, 3, -1) < 0 && errno != EINTR)
            fail("poll");
        struct signalfd_siginfo ignored;
        while (read(ended, &ignored, sizeof ignored) > 0)
            ;
        running = !reap(command, &status);
        /* What was written before the end is sent before the end; what others still write later is not waited for. */
        if (!forward(out[0], 'O'))
            from[1].fd = -1;
        if (!forward(err[0], 'E'))
            from[2].fd = -1;
    }
    MARK(MARK_COMMAND_END);
    unsigned char code = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
    send_frame('X', &code, 1);
    for (;;)
        pause();
}
