/* Marks an interval for the counter.
 *     mark COMMAND...   while the command runs, and ends with its status
 *     mark begin        an interval begins
 *     mark end          it ends */
#include <stdio.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "mark.h"

int main(int count, char **words)
{
    if (count < 2) {
        fputs("mark: usage: mark COMMAND... | mark begin | mark end\n", stderr);
        return 2;
    }
    if (count == 2 && !strcmp(words[1], "begin")) {
        MARK(MARK_BEGIN);
        return 0;
    }
    if (count == 2 && !strcmp(words[1], "end")) {
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
