/* Marks an interval for the counter.
 *     mark COMMAND...   while the command runs, and ends with its status
 *     mark for SECONDS  so long, also 0.5, in which it sleeps and starts nothing */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "mark.h"

int main(int count, char **words)
{
    if (count < 2) {
        fputs("mark: usage: mark COMMAND... | mark for SECONDS\n", stderr);
        return 2;
    }
    if (count == 3 && !strcmp(words[1], "for")) {
        double seconds = atof(words[2]);
        if (!(seconds > 0)) {
            fprintf(stderr, "mark: not a number of seconds: %s\n", words[2]);
            return 2;
        }
        MARK(MARK_BEGIN);
        usleep(seconds * 1e6);
        MARK(MARK_END);
        return 0;
    }
    MARK(MARK_BEGIN);
    pid_t child = fork();
    if (child == 0) {
        execvp(words[1], words + 1);
        perror(words[1]);
        _exit(127);
    }
    int status = 1 << 8;
    if (child < 0 || waitpid(child, &status, 0) < 0)
        perror("mark");
    MARK(MARK_END);
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}
