import java.io.InputStream;
import java.io.OutputStream;
import java.util.Arrays;
import java.util.Random;
import java.util.TreeSet;
import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.fs.BlockLocation;
import org.apache.hadoop.fs.FileSystem;
import org.apache.hadoop.fs.Path;
import org.apache.hadoop.fs.StorageType;

/**
 * Files in HDFS whose bytes their names decide.
 *
 * <pre>
 * Files put FILE MIB POLICY   writes FILE into a directory of that policy; prints the storage types of its blocks
 * Files check FILE MIB        reads FILE, and fails unless each byte is the one that was put
 * Files where FILE            prints the storage types of its blocks
 * Files rates MIB ROUNDS POLICY...   prints MB/s of writing and of reading: a line for each round and policy, in turn
 * </pre>
 */
public class Files {
    private static final int MIB = 1 << 20;
    private static FileSystem system;

    public static void main(String[] arguments) throws Exception {
        system = FileSystem.get(new Configuration());
        switch (arguments[0]) {
            case "put":
                put(arguments[1], Integer.parseInt(arguments[2]), arguments[3]);
                System.out.println(where(arguments[1]));
                break;
            case "check":
                check(arguments[1], Integer.parseInt(arguments[2]));
                break;
            case "where":
                System.out.println(where(arguments[1]));
                break;
            default:
                rates(Integer.parseInt(arguments[1]), Integer.parseInt(arguments[2]), Arrays.copyOfRange(arguments, 3, arguments.length));
        }
    }

    private static void put(String name, int mebibytes, String policy) throws Exception {
        Path path = new Path(name);
        system.mkdirs(path.getParent());
        system.setStoragePolicy(path.getParent(), policy);
        Random source = new Random(name.hashCode());
        byte[] bytes = new byte[MIB];
        // LAZY_PERSIST is for one replica.
        try (OutputStream out = system.create(path, true, MIB, (short) 1, 32L * MIB)) {
            for (int index = 0; index < mebibytes; index++) {
                source.nextBytes(bytes);
                out.write(bytes);
            }
        }
    }

    private static void check(String name, int mebibytes) throws Exception {
        Random source = new Random(name.hashCode());
        byte[] bytes = new byte[MIB];
        try (InputStream in = system.open(new Path(name))) {
            for (int index = 0; index < mebibytes; index++) {
                source.nextBytes(bytes);
                if (!Arrays.equals(in.readNBytes(MIB), bytes)) {
                    throw new AssertionError(name + " has other bytes in MiB " + index);
                }
            }
            if (in.read() != -1) {
                throw new AssertionError(name + " is longer than it was");
            }
        }
    }

    private static String where(String name) throws Exception {
        Path path = new Path(name);
        TreeSet<String> types = new TreeSet<>();
        for (BlockLocation block : system.getFileBlockLocations(path, 0, system.getFileStatus(path).getLen())) {
            for (StorageType type : block.getStorageTypes()) {
                types.add(type.name());
            }
        }
        return String.join(",", types);
    }

    private static void rates(int mebibytes, int rounds, String[] policies) throws Exception {
        // Round 0 warms the programs up, and is not told.
        for (int round = 0; round <= rounds; round++) {
            for (String policy : policies) {
                String name = "/rates-" + policy + "/file";
                long start = System.nanoTime();
                put(name, mebibytes, policy);
                long written = System.nanoTime();
                check(name, mebibytes);
                long read = System.nanoTime();
                if (round > 0) {
                    System.out.printf("%s %s %.1f %.1f%n", policy, where(name), rate(mebibytes, written - start), rate(mebibytes, read - written));
                }
                system.delete(new Path(name), false);
            }
        }
    }

    private static double rate(int mebibytes, long nanoseconds) {
        return mebibytes * (double) MIB * 1e3 / nanoseconds;
    }
}
